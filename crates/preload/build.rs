//! Link options of the preload library.

fn main() {
    // Its constructor runs before that of any other library, so that its fork handlers are the first registered:
    // they then run last before a fork and first after it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Calls from within the library go to its own functions directly.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // It looks its own functions up by that table (`symbols.rs`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,--hash-style=gnu");
    println!("cargo:rerun-if-changed=build.rs");
}
