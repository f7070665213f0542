//! Gives the shared library the name by which programs that were linked against it ask for it at run time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmemfold_client.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
