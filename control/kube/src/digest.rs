//! Short digests that are written into objects, and so have to be the same in every release.

use ring::digest::{Context, SHA256};

/// The first eight bytes of the SHA-256 of `parts`, in hexadecimal digits.
pub fn digest(parts: &[&str]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }

    context.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_in_every_release() {
        assert_eq!(digest(&["Configuration", "Warning"]), "43bee795ca3eff69");
    }

    #[test]
    fn a_digest_depends_on_where_parts_end() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
