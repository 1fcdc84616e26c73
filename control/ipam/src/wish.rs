//! Which prefixes a `Configuration` asks names for. Pure.

use remap::Prefix;
use strait_api::Configuration;
use strait_plan::objects::{LISTS, judge};

/// All that one `Configuration` asks for: list by list as in [`LISTS`], place by place as in the spec;
/// `None` for what asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wishes(pub(super) [Vec<Option<Prefix>>; 2]);

impl Wishes {
    /// Every prefix once, with its list, in the order in which names are given.
    pub(super) fn prefixes(&self) -> Vec<(&'static str, Prefix)> {
        let mut prefixes = Vec::new();
        for (list, wishes) in LISTS.into_iter().zip(&self.0) {
            for prefix in wishes.iter().flatten() {
                if !prefixes.contains(&(list, *prefix)) {
                    prefixes.push((list, *prefix));
                }
            }
        }

        prefixes
    }

    /// When it is the turn of `prefix`; `None` if nobody asks for it.
    pub(super) fn turn(&self, list: &str, prefix: Prefix) -> Option<usize> {
        self.prefixes().into_iter().position(|wish| wish == (list, prefix))
    }
}

/// What `object` asks for.
pub(super) fn wishes(object: &Configuration) -> Wishes {
    Wishes(judge(object).remote)
}
