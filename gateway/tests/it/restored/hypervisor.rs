//! What stands in for a hypervisor: a program that it starts finds its page at `/dev/vmclock0`.
//!
//! The program gets a `/dev` of its own, which only its mount namespace has. Needs root, `unshare` and
//! `mount`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use strait_lab::Scratch;

/// `struct vmclock_abi` (Linux, `include/uapi/linux/vmclock-abi.h`), in bytes.
const PAGE_BYTES: usize = 112;

/// Mounts what the program needs of `/dev`, and becomes it.
const SCRIPT: &str = "#!/bin/sh
exec unshare --mount sh -ec '
    mount -t tmpfs devices \"$DEVICES\"
    mkdir \"$DEVICES/net\"
    for device in null zero random urandom net/tun; do
        : > \"$DEVICES/$device\"
        mount --bind \"/dev/$device\" \"$DEVICES/$device\"
    done
    : > \"$DEVICES/vmclock0\"
    mount --bind \"$PAGE\" \"$DEVICES/vmclock0\"
    mount --move \"$DEVICES\" /dev
    exec \"$PROGRAM\" \"$@\"
' sh \"$@\"
";

/// Of one machine.
pub(crate) struct Hypervisor {
    /// To be started instead of the program that it runs.
    pub(crate) program: PathBuf,
    page: PathBuf,
    generation: u64,
}

impl Hypervisor {
    /// Runs `program`, as often as it is started.
    pub(crate) fn of(program: &Path, scratch: &Scratch) -> Self {
        let devices = scratch.path().join("devices");
        fs::create_dir(&devices).unwrap();
        let page = scratch.write("vmclock", "").unwrap();
        let shown = [("DEVICES", &*devices), ("PAGE", &*page), ("PROGRAM", program)];
        let exports: String = shown
            .iter()
            .map(|(name, path)| format!("export {name}='{}'\n", path.display()))
            .collect();
        let script = SCRIPT.replacen('\n', &format!("\n{exports}"), 1);
        let file = scratch.write("hypervisor", &script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();

        let hypervisor = Self { program: file, page, generation: 0 };
        hypervisor.write();

        hypervisor
    }

    /// The machine goes on from a snapshot.
    pub(crate) fn restore(&mut self) {
        self.generation += 1;
        self.write();
    }

    fn write(&self) {
        let mut page = [0; PAGE_BYTES];
        page[..4].copy_from_slice(b"VCLK");
        // The version of the layout, the marker of any disruption, and that there is a generation as well.
        page[8] = 1;
        page[16..24].copy_from_slice(&self.generation.to_le_bytes());
        page[25] = 1;
        page[104..].copy_from_slice(&self.generation.to_le_bytes());

        // Over the old one: the file that is mounted must stay.
        OpenOptions::new().write(true).open(&self.page).unwrap().write_all_at(&page, 0).unwrap();
    }
}
