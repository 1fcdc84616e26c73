//! The path MTU of a peer, and where the figure comes from.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest inner packet that the path to a peer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// In bytes. [`Peer`](super::Peer) takes 0 for unknown.
    pub bytes: u16,
    /// What limits it.
    pub source: PathMtuSource,
}

/// What limits a path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMtuSource {
    /// The MTU of the device: the path carries more, or as much.
    Device,
    /// The route to the endpoint: the MTU of its interface, or what routers reported to the kernel (RFC 1191, RFC 8201).
    Route,
    /// Probes: longer ones were lost (RFC 8899).
    Probe,
}

impl PathMtuSource {
    const ALL: [Self; 3] = [Self::Device, Self::Route, Self::Probe];

    /// Its place in [`Self::ALL`].
    const fn index(self) -> u8 {
        match self {
            Self::Device => 0,
            Self::Route => 1,
            Self::Probe => 2,
        }
    }

    /// Its name, as in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Route => "route",
            Self::Probe => "probe",
        }
    }
}

impl fmt::Display for PathMtuSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PathMtuSource {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|source| source.name() == text).ok_or(())
    }
}

/// A [`PathMtu`] that threads share.
#[derive(Debug, Default)]
pub(super) struct SharedPathMtu(AtomicU32);

impl SharedPathMtu {
    /// The largest inner packet in bytes; 0 is unknown.
    #[inline]
    pub(super) fn bytes(&self) -> u16 {
        let [_, _, high, low] = self.0.load(Ordering::Relaxed).to_be_bytes();

        u16::from_be_bytes([high, low])
    }

    pub(super) fn get(&self) -> Option<PathMtu> {
        let [_, source, high, low] = self.0.load(Ordering::Relaxed).to_be_bytes();
        let bytes = u16::from_be_bytes([high, low]);
        let source = *PathMtuSource::ALL.get(usize::from(source))?;

        (bytes != 0).then_some(PathMtu { bytes, source })
    }

    pub(super) fn set(&self, PathMtu { bytes, source }: PathMtu) {
        let [high, low] = bytes.to_be_bytes();

        self.0.store(u32::from_be_bytes([0, source.index(), high, low]), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_path_mtu_keeps_its_source() {
        let shared = SharedPathMtu::default();
        assert_eq!((shared.bytes(), shared.get()), (0, None));

        for source in PathMtuSource::ALL {
            for bytes in [1, 1420, u16::MAX] {
                shared.set(PathMtu { bytes, source });
                assert_eq!(
                    (shared.bytes(), shared.get()),
                    (bytes, Some(PathMtu { bytes, source }))
                );
            }
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        assert_eq!("Probe".parse::<PathMtuSource>(), Err(()));
    }
}
