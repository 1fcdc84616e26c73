//! Detects that the machine was restored from a snapshot, with `/dev/vmclock0`.
//!
//! A restored machine has the sessions of the machine that the snapshot was taken of. If both continue, or one is
//! restored twice, different packets are sealed with the same key and counter, and an eavesdropper learns the XOR of
//! their contents. The kernel notifies its own WireGuard; programs have only this device. Linux has it since 6.13,
//! and since 7.0 it tells a restored snapshot from a move to another host.
//!
//! Source: Linux, `include/uapi/linux/vmclock-abi.h`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use tracing::{debug, info, warn};

/// The device, visible only to privileged containers.
const DEVICE: &str = "/dev/vmclock0";

/// `struct vmclock_abi`, in bytes, with the generation at its end.
const PAGE_BYTES: usize = 112;

const MAGIC: u32 = 0x4b4c_4356;
const VERSION: u16 = 1;

/// `VMCLOCK_FLAG_VM_GEN_COUNTER_PRESENT`
const HAS_GENERATION: u64 = 1 << 8;

/// Reads the hypervisor's page.
#[derive(Debug)]
pub struct VmClock {
    device: Option<File>,
    last: Option<Marker>,
}

/// Identifies the run of the machine since the last restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// Counts the restored snapshots.
    Generation(u64),
    /// Changes with each restored snapshot, and when the machine is moved.
    Disruption(u64),
}

impl VmClock {
    /// Opens the device. Most machines have none, and then no restore is ever reported.
    pub fn open() -> Self {
        Self::of(Path::new(DEVICE))
    }

    fn of(path: &Path) -> Self {
        let device = match File::open(path) {
            Ok(device) => Some(device),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                warn!(
                    %error,
                    ?path,
                    "cannot read the device, so a restored snapshot of this machine is not detected: allow the process to read it"
                );
                None
            }
        };
        let mut clock = Self { device, last: None };
        clock.is_restored();

        clock
    }

    /// Calls `renew_sessions` if the machine was restored from a snapshot since the previous call. Both daemons call
    /// this with each tick.
    pub fn check(&mut self, renew_sessions: impl FnOnce()) {
        if self.is_restored() {
            info!("this machine was restored from a snapshot: all sessions are renewed");
            renew_sessions();
        }
    }

    /// Whether the machine was restored from a snapshot since the previous call.
    fn is_restored(&mut self) -> bool {
        let Some(device) = &self.device else { return false };
        let mut page = [0; PAGE_BYTES];
        // The kernel waits while the hypervisor writes, for a bounded time.
        if let Err(error) = device.read_exact_at(&mut page, 0) {
            debug!(%error, "cannot read the hypervisor's page");
            return false;
        }
        let Some(marker) = Marker::read(&page) else { return false };
        let last = self.last.replace(marker);

        last.is_some_and(|last| last != marker)
    }
}

impl Marker {
    /// `None` if the page has another format.
    fn read(page: &[u8; PAGE_BYTES]) -> Option<Self> {
        let is_known = u32_at(page, 0)? == MAGIC && u16_at(page, 8)? == VERSION;
        let has_generation = u64_at(page, 24)? & HAS_GENERATION != 0;
        let marker = if has_generation {
            Self::Generation(u64_at(page, 104)?)
        } else {
            Self::Disruption(u64_at(page, 16)?)
        };

        is_known.then_some(marker)
    }
}

fn u16_at(page: &[u8], place: usize) -> Option<u16> {
    page.get(place..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn u32_at(page: &[u8], place: usize) -> Option<u32> {
    page.get(place..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(page: &[u8], place: usize) -> Option<u64> {
    page.get(place..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_restored_snapshot_renews_sessions_once() {
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, page(HAS_GENERATION, 3, 7)).unwrap();
        let mut clock = VmClock::of(file.path());
        let mut renewals = 0;
        clock.check(|| renewals += 1);
        assert_eq!(renewals, 0);

        fs::write(&file, page(HAS_GENERATION, 4, 8)).unwrap();
        clock.check(|| renewals += 1);
        clock.check(|| renewals += 1);

        assert_eq!(renewals, 1);
    }

    #[test]
    fn a_moved_machine_keeps_its_sessions() {
        for (flags, expected) in [(HAS_GENERATION, false), (0, true)] {
            let file = NamedTempFile::new().unwrap();
            fs::write(&file, page(flags, 3, 7)).unwrap();
            let mut clock = VmClock::of(file.path());

            fs::write(&file, page(flags, 4, 7)).unwrap();

            assert_eq!(clock.is_restored(), expected, "{flags:#x}");
        }
    }

    #[test]
    fn invalid_vmclock_pages_are_ignored() {
        let file = NamedTempFile::new().unwrap();
        let mut clock = VmClock::of(file.path());
        let mut foreign = page(HAS_GENERATION, 3, 7);
        foreign[0] ^= 1;
        let mut newer = page(HAS_GENERATION, 3, 8);
        newer[8] += 1;

        for content in [&foreign[..], &newer, &page(HAS_GENERATION, 3, 9)[..100], &[]] {
            fs::write(&file, content).unwrap();
            assert!(!clock.is_restored(), "{} bytes", content.len());
        }
        assert!(!VmClock::of(Path::new("/dev/no-such-clock")).is_restored());
    }

    fn page(flags: u64, disruption: u64, generation: u64) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..4].copy_from_slice(&MAGIC.to_le_bytes());
        page[8..10].copy_from_slice(&VERSION.to_le_bytes());
        page[16..24].copy_from_slice(&disruption.to_le_bytes());
        page[24..32].copy_from_slice(&flags.to_le_bytes());
        page[104..].copy_from_slice(&generation.to_le_bytes());

        page
    }
}
