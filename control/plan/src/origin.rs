//! The origins of settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::objects::ObjectName;

/// Where a value comes from. Its JSON form is public interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are those of the JSON form")]
pub enum Origin {
    /// The built-in default.
    #[default]
    Default,
    /// The configuration file.
    File { path: String },
    /// The command line.
    Flag { flag: String },
    /// An environment variable in place of a flag.
    Environment { variable: String },
    /// An object of the API server.
    Object { kind: String, namespace: String, name: String },
    /// A request at run time.
    Request,
}

impl From<ObjectName> for Origin {
    fn from(object: ObjectName) -> Self {
        let ObjectName { kind, namespace, name } = object;

        Self::Object { kind, namespace, name }
    }
}

/// The origins of keys. A missing key has its default. Shared, because thousands of peers have equal origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<BTreeMap<&'static str, Origin>>);

impl Origins {
    /// The origin of `key`, as it is spelled in the file.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// All keys that have an origin.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Origin)> {
        self.0.iter().map(|(key, origin)| (*key, origin))
    }

    /// Returns the origins with `origin` for `key`.
    #[must_use]
    pub fn with(mut self, key: &'static str, origin: Origin) -> Self {
        Arc::make_mut(&mut self.0).insert(key, origin);

        self
    }

    /// Returns the origins with the origin of `key` in `other`.
    #[must_use]
    pub fn with_that_of(mut self, key: &'static str, other: &Self) -> Self {
        let origins = Arc::make_mut(&mut self.0);
        match other.0.get(key) {
            Some(origin) => origins.insert(key, origin.clone()),
            None => origins.remove(key),
        };

        self
    }
}

impl FromIterator<(&'static str, Origin)> for Origins {
    fn from_iter<T: IntoIterator<Item = (&'static str, Origin)>>(origins: T) -> Self {
        Self(Arc::new(origins.into_iter().collect()))
    }
}
