//! Parsers for the values of flags; errors are found before the API server is called.

use std::net::IpAddr;

use strait_plan::endpoint::Endpoint;

/// Parses an address or a DNS name of a gateway server.
pub(super) fn address(text: &str) -> Result<String, String> {
    let host = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Ok(IpAddr::V4(_)) | Err(_) => text.to_owned(),
    };
    // Parsed as the gateway parses it; the port is a separate flag.
    format!("{host}:1").parse::<Endpoint>().map_err(|why| why.to_string())?;

    Ok(text.to_owned())
}

/// The same, or an empty value, which means unset.
pub(super) fn address_or_none(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { address(text) }
}

/// An IP address, or an empty value.
pub(super) fn ip_or_none(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }

    match text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => Err("write an IP address, for example 198.51.100.7".to_owned()),
    }
}

/// A UDP port; 0 or an empty value means unset, as in Liqo's documentation.
pub(super) fn port_or_none(text: &str) -> Result<u16, String> {
    if text.is_empty() {
        return Ok(0);
    }

    text.parse().map_err(|_| "write a port from 1 to 65535; 0 or an empty value is none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_addresses_are_gateway_endpoints() {
        for good in ["172.18.0.3", "fd00::3", "gateway.example", "milan"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in ["", "not an address", "0.0.0.0", "::", "224.0.0.1", "10.0.0.1:51840", "a..b"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(address_or_none("").as_deref(), Ok(""));
    }

    #[test]
    fn empty_values_mean_unset() {
        assert_eq!(port_or_none(""), Ok(0));
        assert_eq!(port_or_none("30742"), Ok(30742));
        assert!(port_or_none("70000").is_err() && port_or_none("x").is_err());
        assert_eq!(ip_or_none("").as_deref(), Ok(""));
        assert_eq!(ip_or_none("198.51.100.7").as_deref(), Ok("198.51.100.7"));
        assert!(ip_or_none("1.2.3").is_err() && ip_or_none("gateway.example").is_err());
    }
}
