//! Packs the fonts of the pictures, which are the larger part of what an executable has besides code.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo names a directory for what is made");
    for (name, font) in [("regular.z", dejavu::sans::regular()), ("bold.z", dejavu::sans::bold())] {
        let packed = miniz_oxide::deflate::compress_to_vec(font, 8);
        std::fs::write(Path::new(&out).join(name), packed).expect("what is made can be written");
    }
}
