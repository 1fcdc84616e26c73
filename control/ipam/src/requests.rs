//! The prefixes for which a `Configuration` requests local prefixes. Pure.

use remap::Prefix;
use strait_api::Configuration;
use strait_plan::objects::{LISTS, parse};

/// All requests of one `Configuration`: list by list as in [`LISTS`], place by place as in the spec; `None` where there
/// is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestedPrefixes(pub(super) [Vec<Option<Prefix>>; 2]);

impl RequestedPrefixes {
    /// Every prefix once, with its list, in the order of allocation.
    pub(super) fn prefixes(&self) -> Vec<(&'static str, Prefix)> {
        let mut prefixes = Vec::new();
        for (list, requested) in LISTS.into_iter().zip(&self.0) {
            for prefix in requested.iter().flatten() {
                if !prefixes.contains(&(list, *prefix)) {
                    prefixes.push((list, *prefix));
                }
            }
        }

        prefixes
    }

    /// The position of `prefix` in the order of allocation; `None` if it is not requested.
    pub(super) fn turn(&self, list: &str, prefix: Prefix) -> Option<usize> {
        self.prefixes().into_iter().position(|wish| wish == (list, prefix))
    }
}

/// The requests of `object`.
pub(super) fn requested_prefixes(object: &Configuration) -> RequestedPrefixes {
    RequestedPrefixes(parse(object).remote)
}
