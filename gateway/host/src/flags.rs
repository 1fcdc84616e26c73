//! Parsers for the values of flags.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// An address to listen on, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind(pub Option<SocketAddr>);

/// Parses an address to listen on: `0` is off, `:PORT` listens on all addresses.
///
/// # Errors
///
/// The valid forms.
pub fn bind_address(text: &str) -> Result<Bind, String> {
    if text == "0" || text.is_empty() {
        return Ok(Bind(None));
    }
    let address = match text.strip_prefix(':') {
        Some(port) => {
            port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))
        }
        None => text.parse().ok(),
    };

    address
        .map(|address| Bind(Some(address)))
        .ok_or_else(|| "write ADDRESS:PORT, :PORT or 0 for off".to_owned())
}

/// Parses a duration as Go writes it: `10s`, `1m30s`, `500ms`. Zero is rejected.
///
/// # Errors
///
/// Examples of valid durations.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration like 500ms, 2s or 1m30s".to_owned();
    let duration: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(duration).map_err(|_| wrong())?;

    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_port_or_nothing() {
        let address = |text: &str| Some(text.parse().unwrap());

        assert_eq!(bind_address("0"), Ok(Bind(None)));
        assert_eq!(bind_address(":8084"), Ok(Bind(address("0.0.0.0:8084"))));
        assert_eq!(bind_address("[::1]:80"), Ok(Bind(address("[::1]:80"))));
        assert!(bind_address("8084").is_err());
        assert!(bind_address(":port").is_err());
    }

    #[test]
    fn a_duration_is_one_of_go() {
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "2", "-2s", "0s", "soon"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
