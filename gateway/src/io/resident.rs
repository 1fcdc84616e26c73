//! What stays in memory: of what was allocated and freed, and of the program once it has started.
//!
//! glibc gives back what is large and freed, until the first time: then it takes as much as that for something
//! that will come again, and keeps it. A configuration comes once.
//!
//! A start passes through much of a program that is not needed again, and the kernel shows 64 KiB around each
//! page that is read. All of that counts as resident until the kernel needs the room. What is in use comes
//! back at its next use, from the memory that the kernel keeps of files anyway.

use std::fs;
use std::io;
use std::ops::Range;

use super::sys;

/// From so many bytes on, memory is asked for by itself and given back when it is freed: what glibc begins with.
const LARGE: i32 = 128 << 10;

/// From here on, what is large and freed is given back, however often that happens. Says whether it is.
pub fn give_back_what_is_freed() -> bool {
    sys::set_mmap_threshold(LARGE)
}

/// Lets go of all pages that are as they are in their files; how many bytes were resident. Nothing that was
/// written is touched.
///
/// # Errors
///
/// If `/proc` does not say what is mapped, or the kernel keeps a mapping, as it does with locked memory.
pub fn let_go_of_files() -> io::Result<u64> {
    let mut bytes = 0;
    for mapping in Pristine::all(&fs::read_to_string("/proc/self/smaps")?) {
        sys::let_go(&mapping)?;
        bytes += mapping.resident_bytes;
    }

    Ok(bytes)
}

/// Pages of a file that nobody can write, and nobody has: not the loader, which fills in addresses before
/// it takes the right to write away, nor a debugger, whose breakpoints are in copies of pages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pristine {
    addresses: Range<usize>,
    resident_bytes: u64,
}

impl Pristine {
    /// Those of a process, from its `/proc/PID/smaps` (proc_pid_smaps(5)).
    fn all(smaps: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut current = None;
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("Rss:"), Some(kib)) => {
                    if let (Some(Self { resident_bytes, .. }), Ok(kib)) =
                        (&mut current, kib.parse::<u64>())
                    {
                        *resident_bytes = kib << 10;
                    }
                }
                // Copies of pages, which would be lost.
                (Some("Anonymous:"), Some("0")) => found.extend(current.take()),
                (Some("Anonymous:"), _) => current = None,
                (Some(field), _) if field.ends_with(':') => {}
                (Some(range), Some(rights)) => {
                    // Offset, device and inode come before the path.
                    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
                    let is_kept = rights.contains('w') || !rights.ends_with('p');
                    current = addresses(range)
                        .filter(|_| is_file && !is_kept)
                        .map(|addresses| Self { addresses, resident_bytes: 0 });
                }
                _ => {}
            }
        }

        found
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }
}

fn addresses(range: &str) -> Option<Range<usize>> {
    let (start, end) = range.split_once('-')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();

    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use std::hint;

    use super::*;

    /// A program's text, what the loader has filled in, its data, and memory of no file.
    const SMAPS: &str = "\
5600-5800 r-xp 00001000 fe:00 5308428                    /usr/bin/strait
Size:                  2 kB
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
5800-5900 r--p 00003000 fe:00 5308428                    /usr/bin/strait
Rss:                   4 kB
Anonymous:             4 kB
5900-5a00 rw-p 00004000 fe:00 5308428                    /usr/bin/strait
Rss:                   4 kB
Anonymous:             0 kB
5a00-5b00 r--s 00004000 fe:00 5308428                    /dev/shm/shared
Rss:                   4 kB
Anonymous:             0 kB
7000-7100 r--p 00000000 00:00 0
Rss:                   0 kB
Anonymous:             0 kB
7100-7200 r-xp 00000000 00:00 0                          [vdso]
Rss:                   4 kB
Anonymous:             0 kB
7200-7300 r--p 00000000 fe:00 77                         /usr/lib/a library (deleted)
Rss:                  12 kB
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_in_its_file_and_stays_so_is_let_go() {
        assert_eq!(
            Pristine::all(SMAPS),
            [
                Pristine { addresses: 0x5600..0x5800, resident_bytes: 8 << 10 },
                Pristine { addresses: 0x7200..0x7300, resident_bytes: 12 << 10 },
            ]
        );
    }

    #[test]
    fn the_c_library_takes_the_threshold() {
        assert!(give_back_what_is_freed());
    }

    #[test]
    fn a_process_goes_on_without_what_it_has_let_go() {
        // Filled in by the loader, and what it leads to is read from the file.
        static FUNCTIONS: [fn(u32) -> u32; 2] = [u32::count_ones, u32::leading_zeros];

        assert!(let_go_of_files().unwrap() > 0);
        assert_eq!(hint::black_box(&FUNCTIONS).map(|function| function(7)), [3, 29]);
    }
}
