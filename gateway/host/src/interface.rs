//! Valid names of network devices.

/// `IFNAMSIZ` of the kernel without the closing zero, in bytes.
const MAX_LEN: usize = 15;

/// Whether the kernel's `dev_valid_name` accepts the name; '%' is excluded, as it starts a pattern.
pub fn is_interface_name(text: &str) -> bool {
    (1..=MAX_LEN).contains(&text.len())
        && text != "."
        && text != ".."
        && !text
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%'))
}

/// Parses a flag that names a device.
///
/// # Errors
///
/// The remedy if it is not a valid name.
pub fn interface_flag(text: &str) -> Result<String, String> {
    if !is_interface_name(text) {
        return Err("use 1 to 15 bytes without '/', ':', '%' and white space".to_owned());
    }

    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_follow_the_kernel() {
        for name in ["liqo-tunnel", "s", "fifteen-bytes-x", "..."] {
            assert_eq!(interface_flag(name), Ok(name.to_owned()));
        }
        for name in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a b", "a\tb", "a:1", "tun%d", "é\0"]
        {
            assert!(interface_flag(name).is_err(), "{name:?}");
        }
    }
}
