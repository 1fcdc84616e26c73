//! Redacts keys in user input before it is repeated in an error or a log: a secret may stand in the wrong place.
//!
//! Keys are written in base64, or in hexadecimal digits with or without separators: `aabb..`, `aa:bb:..`,
//! `aabbccdd eeff..`, `0xaa, 0xbb, ..`. Values worth repeating are shorter: an IPv6 address has 32 digits in eight
//! groups, and a port.

use std::borrow::Cow;
use std::ops::Range;

/// Replaces a key.
const HIDDEN: &str = "(hidden)";

/// This many characters of base64 in a row are most of a key, which has 43.
const BASE64_LEN: usize = 40;

/// This many hexadecimal digits are more than an address with its port, and less than a key, which has 64.
const HEX_DIGITS: usize = 42;

/// This many bytes, each written as two digits, are no address either.
const HEX_BYTES: usize = 12;

/// `text` with everything that may be a key replaced.
#[must_use]
pub fn without_keys(text: &str) -> Cow<'_, str> {
    let hidden: Vec<_> = base64_keys(text).chain(hex_keys(text)).collect();
    if hidden.is_empty() {
        return Cow::Borrowed(text);
    }

    let mut shown = String::new();
    let mut was_hidden = false;
    for (at, c) in text.char_indices() {
        let is_hidden = hidden.iter().any(|range| range.contains(&at));
        if !is_hidden {
            shown.push(c);
        } else if !was_hidden {
            shown.push_str(HIDDEN);
        }
        was_hidden = is_hidden;
    }

    Cow::Owned(shown)
}

/// Words of base64, of either alphabet, with lower case, upper case and digits: all but one key in ten thousand have
/// all three, and hardly any path or name of that length has.
fn base64_keys(text: &str) -> impl Iterator<Item = Range<usize>> {
    let words = words(text, |c| c.is_ascii_alphanumeric() || "+/-_".contains(c));

    words
        .filter(|(_, word)| {
            let has = |is_kind: fn(&u8) -> bool| word.as_bytes().iter().any(is_kind);
            let is_mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
            word.len() >= BASE64_LEN && is_mixed && has(u8::is_ascii_digit)
        })
        .map(|(range, _)| range)
}

/// Sequences of groups of hexadecimal digits.
fn hex_keys(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut is_open = false;
    for (range, word) in words(text, |c| c.is_ascii_alphanumeric()) {
        let Some(digits) = hex_digits(word) else {
            is_open = false;
            continue;
        };
        match runs.last_mut() {
            Some(run) if is_open && range.start <= run.range.end + 2 => run.add(range.end, digits),
            _ => runs.push(Run::new(range, digits)),
        }
        is_open = true;
    }

    runs.into_iter().filter(Run::may_be_a_key).map(|run| run.range)
}

/// Groups of digits with at most two characters between them.
struct Run {
    range: Range<usize>,
    digits: usize,
    /// Groups so far.
    bytes: usize,
    has_bytes_only: bool,
}

impl Run {
    const fn new(range: Range<usize>, digits: usize) -> Self {
        Self { range, digits, bytes: 1, has_bytes_only: digits == 2 }
    }

    const fn add(&mut self, end: usize, digits: usize) {
        self.range.end = end;
        self.digits += digits;
        self.bytes += 1;
        self.has_bytes_only &= digits == 2;
    }

    const fn may_be_a_key(&self) -> bool {
        self.digits >= HEX_DIGITS || (self.has_bytes_only && self.bytes >= HEX_BYTES)
    }
}

/// How many digits `word` has, if it is hexadecimal, with or without a prefix `0x` or `x`.
fn hex_digits(word: &str) -> Option<usize> {
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix('x')).unwrap_or(word);

    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(digits.len())
}

/// The longest pieces of `text` in which all characters satisfy `is_of_word`.
fn words(
    text: &str,
    is_of_word: impl Fn(char) -> bool,
) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut at = 0;
    text.split(move |c| !is_of_word(c)).filter_map(move |word| {
        let start = text.get(at..)?.find(word)? + at;
        at = start + word.len();
        (!word.is_empty()).then_some((start..at, word))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::PrivateKey;

    #[test]
    fn text_without_a_key_is_unchanged() {
        for text in [
            "",
            "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:51820",
            "[2001:0db8:0000:0000:0000:ff00:0042:8329]:51820",
            "fd00:10:244::/56, 10.244.0.0/16, 10.71.0.0/16 and 10.70.0.0/16",
            "52:54:00:12:34:56",
            "gateway-of-the-second-cluster.networking.svc.cluster.local:51840",
            "/var/lib/strait/clusters/milan/keys/preshared-with-rome.key",
            "d9b2d63d-a233-4123-847a-7090d5e5a7a1",
            "more than a name: ἀλήθεια, größer als erwartet",
        ] {
            assert_eq!(without_keys(text), text);
        }
    }

    #[test]
    fn part_of_a_key_is_hidden() {
        let piece = "a5:46:e3:6b:f0:52:7c:9d:3b:16:15:4b";

        assert_eq!(without_keys(&format!("from {piece} on")), "from (hidden) on");
    }

    proptest! {
        /// In all notations, with any text around it.
        #[test]
        fn a_key_is_hidden(
            secret in any::<[u8; 32]>(),
            group in 1..=32_usize,
            separator in "[ :.,;_|-]{1,2}|\\\\x|, 0x|",
            (before, after) in ("([ -~é]{0,8}[ (=\"])?", "([ )\"=][ -~é]{0,8})?"),
            is_upper in any::<bool>(),
        ) {
            prop_assume!(secret != [0; 32]);
            let key = PrivateKey::from_bytes(&secret).unwrap();
            let groups = secret.chunks(group).map(|bytes| -> String {
                let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                if is_upper { digits.collect::<String>().to_uppercase() } else { digits.collect() }
            });
            let groups: Vec<_> = groups.collect();
            let base64 = key.to_base64();
            let is_mixed = base64.bytes().any(|byte| byte.is_ascii_digit());

            let hex = groups.join(&separator);
            let shown = without_keys(&format!("{before}{hex}{after}")).into_owned();
            prop_assert!(!groups.iter().any(|group| group.len() >= 4 && shown.contains(&**group)), "{shown}");
            prop_assert!(shown.contains(HIDDEN), "{shown}");
            if is_mixed {
                let shown = without_keys(&format!("{before}{}{after}", *base64)).into_owned();
                prop_assert!(!shown.contains(&base64[..20]), "{shown}");
            }
        }
    }
}
