//! Messages of a bounded length, for any content of an object.

/// The longest message, in bytes. The API takes more in a condition, but not in an Event.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// The longest part of a message that is about one problem.
const PART_BYTES_MAX: usize = 320;

/// Room for the count of the parts that are left out.
const REST_BYTES_MAX: usize = 32;

/// The `parts` that fit, joined, and the number of those left out.
pub fn list(parts: impl IntoIterator<Item = String>) -> String {
    let mut message = String::new();
    let mut left_out = 0_usize;
    for part in parts {
        let part = shortened(&part);
        let needed = message.len() + "; ".len() + part.len();
        if left_out > 0 || needed > MESSAGE_BYTES_MAX - REST_BYTES_MAX {
            left_out += 1;
            continue;
        }
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str(&part);
    }
    if left_out > 0 {
        message.push_str(&format!("; and {left_out} more"));
    }

    message
}

/// The beginning and the end of a text that is too long for a line: the beginning has the value, the end the remedy.
#[must_use]
pub fn shortened(text: &str) -> String {
    if text.len() <= PART_BYTES_MAX {
        return text.to_owned();
    }
    let half = PART_BYTES_MAX / 2 - "…".len();
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (0..=half).rev().find(is_boundary).unwrap_or_default();
    let end = (text.len() - half..text.len()).find(is_boundary).unwrap_or(text.len());

    format!("{}…{}", text.get(..start).unwrap_or_default(), text.get(end..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_left_out_are_counted() {
        assert_eq!(list(["a".to_owned(), "b".to_owned()]), "a; b");
        let long = "x".repeat(300);
        let message = list(vec![long.clone(); 7]);
        assert!(message.starts_with(&format!("{long}; {long}")), "{message}");
        assert!(message.ends_with("; and 4 more"), "{message}");
        let both_ends = list([format!("pod[3] {}: choose another", "é".repeat(9_999))]);
        assert!(both_ends.starts_with("pod[3] é") && both_ends.ends_with("é: choose another"));
    }

    proptest! {
        #[test]
        fn no_message_is_too_long(
            parts in proptest::collection::vec((".{0,9}", 0_usize..2_000), 0..40),
        ) {
            let parts = parts.into_iter().map(|(text, times)| text.repeat(times));

            prop_assert!(list(parts).len() <= MESSAGE_BYTES_MAX);
        }
    }
}
