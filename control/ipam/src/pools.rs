//! The prefixes to allocate from.

use remap::Prefix;

/// Private prefixes (RFC 1918) in Liqo's order of preference, and unique local ones of IPv6 (RFC 4193, section 3.1).
const DEFAULT: [&str; 4] = ["10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12", "fd00::/8"];

/// The pools, the preferred ones first. No two overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools(Vec<Prefix>);

/// Why prefixes are not valid pools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolsError {
    /// There is none.
    #[error("no pool: name at least one, as 10.0.0.0/8")]
    None,
    /// A prefix in both could be allocated twice.
    #[error("pool {second} overlaps pool {first}: leave one of them out")]
    Overlap {
        /// The first of the two.
        first: Prefix,
        /// The other.
        second: Prefix,
    },
}

impl Pools {
    /// `pools` in the order of preference.
    ///
    /// # Errors
    ///
    /// [`PoolsError`] if there is none, or two overlap.
    pub fn new(pools: Vec<Prefix>) -> Result<Self, PoolsError> {
        if pools.is_empty() {
            return Err(PoolsError::None);
        }
        for (place, second) in pools.iter().enumerate() {
            let mut former = pools.iter().take(place);
            if let Some(first) = former.find(|first| first.overlaps(*second)) {
                return Err(PoolsError::Overlap { first: *first, second: *second });
            }
        }

        Ok(Self(pools))
    }

    /// All of them, the preferred ones first.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        self.0.iter().copied()
    }

    /// Whether `prefix` lies in one of them.
    #[must_use]
    pub fn cover(&self, prefix: Prefix) -> bool {
        self.iter().any(|pool| pool.covers(prefix))
    }
}

impl Default for Pools {
    /// Those of Liqo.
    fn default() -> Self {
        Self(DEFAULT.iter().filter_map(|text| text.parse().ok()).collect())
    }
}
