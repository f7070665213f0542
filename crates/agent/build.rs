//! Link options of the agent: one file that needs no loader and no libc.

fn main() {
    for option in [
        "-nostartfiles",
        "-nodefaultlibs",
        "-static-pie",
        "-Wl,--no-dynamic-linker",
        "-Wl,-z,noexecstack",
        "-Wl,-z,norelro",
    ] {
        println!("cargo:rustc-link-arg-bins={option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
