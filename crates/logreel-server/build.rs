//! Makes a table of the page's files, which are built and committed in `web/dist`, each also compressed.
//! Without them there is a word about where the API is.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let dist = here.join("../../web/dist");
    println!("cargo::rerun-if-changed=build.rs");
    // A folder that is not there would count as changed each time: look at what is above it then.
    let watched = if dist.exists() { &dist } else { &here };
    println!("cargo::rerun-if-changed={}", watched.display());
    let mut files = Vec::new();
    if dist.join("index.html").exists() {
        find(&dist, &mut files);
        files.sort();
    }
    let mut table = String::from("static ASSETS: &[Asset] = &[\n");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    for (place, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&dist).expect("it was found there");
        let packed = out.join(format!("{place}.gz"));
        pack(file, &packed);
        let gzip = format!("Some(include_bytes!({packed:?}))");
        add(&mut table, &name.to_string_lossy(), file, &gzip);
    }
    if files.is_empty() {
        add(
            &mut table,
            "index.html",
            &here.join("src/placeholder.html"),
            "None",
        );
    }
    table.push_str("];\n");
    std::fs::write(out.join("assets.rs"), table).expect("the build's own folder can be written");
}

fn add(table: &mut String, name: &str, file: &Path, gzip: &str) {
    writeln!(
        table,
        "    Asset {{ path: {name:?}, bytes: include_bytes!({file:?}), gzip: {gzip} }},"
    )
    .expect("a string takes everything");
}

fn pack(file: &Path, packed: &Path) {
    let bytes = std::fs::read(file).expect("the page's files can be read");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(&bytes).expect("memory takes everything");
    let bytes = packer.finish().expect("memory takes everything");
    std::fs::write(packed, bytes).expect("the build's own folder can be written");
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in std::fs::read_dir(folder).expect("the page's folder can be read") {
        let path = entry.expect("the page's folder can be read").path();
        match path.is_dir() {
            true => find(&path, files),
            false => files.push(path),
        }
    }
}
