//! Link options of what needs no loader and no libc.

/// The agent, which can lie anywhere.
const AGENT: [&str; 3] = ["-static-pie", "-Wl,--no-dynamic-linker", "-Wl,-z,norelro"];
/// A program, of which nothing has to be relocated.
const HANDSHAKE: [&str; 2] = ["-static", "-no-pie"];

fn main() {
    for (bin, options) in [("memfold-agent", &AGENT[..]), ("memfold-handshake", &HANDSHAKE)] {
        for option in ["-nostartfiles", "-nodefaultlibs", "-Wl,-z,noexecstack"].iter().chain(options) {
            println!("cargo:rustc-link-arg-bin={bin}={option}");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}
