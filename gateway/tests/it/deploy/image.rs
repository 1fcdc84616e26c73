//! The image: what goes in, and the binary that comes out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::deploy::root;
use crate::harness::STRAIT;

/// What one may download without a second thought.
const BYTES_MAX: usize = 25_000_000;

const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;

/// The binary that `make image-check` has built.
pub(crate) fn binary() -> PathBuf {
    let path = std::env::var_os("STRAIT_IMAGE_BINARY");

    path.map(PathBuf::from).expect("STRAIT_IMAGE_BINARY is missing: run `make image-check`")
}

#[test]
#[ignore = "needs the binary of the image: make image-check"]
fn the_binary_needs_no_library_and_is_small() {
    let binary = binary();
    let file = fs::read(&binary).unwrap();

    let output = Command::new(&binary).arg("--version").env_clear().output().unwrap();

    eprintln!("{}: {} bytes", binary.display(), file.len());
    // That of .ci/run is the binary of the tests.
    let is_debug = binary.iter().any(|folder| folder == "debug");
    assert!(is_debug || file.len() <= BYTES_MAX, "{} bytes", file.len());
    let elf = Elf(&file);
    assert_eq!(elf.segments(PT_INTERP).count(), 0, "a dynamic linker");
    assert_eq!(elf.dynamic_tags().filter(|tag| *tag == DT_NEEDED).count(), 0, "a library");
    let version = format!("strait {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
    let root = root().display().to_string();
    let has = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!has(&format!("{root}/gateway/src")), "names {root}");
}

/// So that the test above can fail.
#[test]
fn dynamic_and_static_binaries_are_distinguished() {
    let file = fs::read(STRAIT).unwrap();
    let elf = Elf(&file);

    let is_static = elf.segments(PT_INTERP).count() == 0;
    let needs = elf.dynamic_tags().filter(|tag| *tag == DT_NEEDED).count();

    assert_eq!(is_static, needs == 0);
    assert!(cfg!(target_feature = "crt-static") || needs > 0);
}

#[test]
fn the_image_context_has_sources_only() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let ignore = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let lines: Vec<_> = ignore.lines().collect();

    let members: Vec<&str> = manifest["workspace"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member.as_str().unwrap())
        .collect();

    for member in &members {
        let mut folders = Path::new(member).ancestors();
        let is_there = folders.any(|folder| lines.contains(&&*format!("!{}", folder.display())));
        assert!(is_there, "{member} is missing");
    }
    for line in ["*", "!Cargo.lock", "!Cargo.toml", "!Makefile", "**/target"] {
        assert!(lines.contains(&line), "{line} is missing");
    }
    let included = included(&members);
    assert!(included.iter().any(|file| file.starts_with("deploy/rbac")), "{included:?}");
    for file in included {
        let mut folders = file.ancestors().map(|folder| format!("!{}", folder.display()));
        assert!(
            folders.any(|line| lines.contains(&line.as_str())),
            "{} is missing",
            file.display()
        );
    }
}

/// The files that the sources of the `members` include, from the root. What only tests include counts too if
/// it stands beside the source.
fn included(members: &[&str]) -> Vec<PathBuf> {
    let sources = members.iter().flat_map(|member| walkdir(&root().join(member).join("src")));
    let mut included = Vec::new();
    for source in sources.filter(|path| !path.ends_with("tests.rs")) {
        let text = fs::read_to_string(&source).unwrap();
        for opening in ["include_str!(\"", "include_bytes!(\""] {
            for rest in text.split(opening).skip(1) {
                let name = &rest[..rest.find('"').unwrap()];
                let file = source.parent().unwrap().join(name).canonicalize().unwrap();
                let root = root().canonicalize().unwrap();
                included.push(file.strip_prefix(root).unwrap().to_owned());
            }
        }
    }

    included
}

/// All files below `folder`.
fn walkdir(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());

    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

#[test]
fn the_image_compiler_is_new_enough() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let wanted = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let version =
        |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };

    let found = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST_VERSION=")).unwrap();

    assert!(version(found) >= version(wanted), "{found} and {wanted}");
}

/// A 64-bit little-endian executable, as both architectures have them.
struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    /// Offset and size of each segment of this type.
    fn segments(&self, wanted: u64) -> impl Iterator<Item = (u64, u64)> {
        assert_eq!(&self.0[..6], b"\x7fELF\x02\x01", "a 64-bit little-endian executable");
        let (table, size, count) =
            (self.number(0x20, 8), self.number(0x36, 2), self.number(0x38, 2));

        (0..count)
            .map(move |index| table + index * size)
            .filter(move |header| self.number(*header, 4) == wanted)
            .map(|header| (self.number(header + 8, 8), self.number(header + 32, 8)))
    }

    fn dynamic_tags(&self) -> impl Iterator<Item = u64> {
        self.segments(PT_DYNAMIC)
            .flat_map(|(offset, size)| (offset..offset + size).step_by(16))
            .map(|entry| self.number(entry, 8))
    }

    fn number(&self, offset: u64, bytes: usize) -> u64 {
        let offset = usize::try_from(offset).unwrap();
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.0[offset..offset + bytes]);

        u64::from_le_bytes(number)
    }
}
