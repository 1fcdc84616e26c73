//! Memory that was freed goes back to the kernel.
//!
//! glibc raises the size from which it asks the kernel for each piece by itself as soon as such a piece is
//! freed, and keeps everything below that for later use. A large configuration is read once.

use super::sys;

/// From so many bytes on, memory is asked for by itself and given back when it is freed: what glibc begins with.
const MMAP_THRESHOLD_BYTES: i32 = 128 << 10;

/// Keeps the size from which freed memory goes back to the kernel at 128 KiB. Returns whether the C library does so.
pub fn set_mmap_threshold() -> bool {
    sys::set_mmap_threshold(MMAP_THRESHOLD_BYTES)
}

/// Gives the kernel back the memory that is free: to be called when much was freed, as after a configuration with
/// thousands of peers was read.
pub fn trim_heap() {
    sys::trim_heap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_takes_the_threshold() {
        assert!(set_mmap_threshold());
    }
}
