//! The journal: all allocations of a cluster as one text in one object.
//!
//! One line per allocation, below the namespace of its resource: the prefix or address, the name, the UID in base 36.
//!
//! ```text
//! [liqo]
//! 10.70.0.0/16 external-cidr 0pbwsudmbyhy2ju6hwb03vkrq last=10.70.0.4
//! 10.244.0.0/16 pod-cidr 3xw5e8pe2g0jtoplsgkq0zd0l shared
//! [liqo-tenant-milan]
//! 10.71.0.0/16 milan-pod-10-244-0-0-16 2m8xqkzv2yxc30m4gdhsvx7ux
//! 10.70.0.1 api-server 6tl0w6h5ft2vhtlm7n6mlvo7g
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use remap::Prefix;

use super::object::Kind;

/// A `ConfigMap` may hold 1 MiB, keys included.
pub(super) const BYTES_MAX: usize = 1_000_000;

/// The base of the digits of a UID.
const BASE: u32 = 36;

/// An allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The namespace of the resource.
    pub namespace: String,
    /// The name of the resource.
    pub name: String,
    /// The prefix or address.
    pub allocation: Allocation,
}

/// The allocation of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Of a `Network`.
    Prefix {
        /// The prefix.
        prefix: Prefix,
        /// Whether other shared prefixes may overlap it.
        is_shared: bool,
        /// The address of it that was allocated last.
        last: Option<IpAddr>,
    },
    /// Of an `IP`.
    Address(IpAddr),
}

impl Allocation {
    /// The kind of the resource.
    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Prefix { .. } => Kind::Network,
            Self::Address(_) => Kind::Ip,
        }
    }
}

/// All allocations, by the UID of the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    entries: BTreeMap<String, Entry>,
    /// The number of entries of each namespace.
    namespaces: BTreeMap<String, usize>,
    bytes: usize,
}

/// Why a text is not a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the allocations is none: {text:?}")]
pub struct JournalError {
    /// The line, counted from one.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

impl Journal {
    /// Parses the text of [`Self::text`].
    ///
    /// # Errors
    ///
    /// [`JournalError`] has the first invalid line.
    pub fn read(text: &str) -> Result<Self, JournalError> {
        let mut journal = Self::default();
        let mut namespace = String::new();
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(name) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                name.clone_into(&mut namespace);
                continue;
            }
            let wrong = || JournalError { line, text: text.chars().take(80).collect() };
            let (uid, entry) = entry(&namespace, text).ok_or_else(wrong)?;
            journal.put(uid, entry);
        }

        Ok(journal)
    }

    /// The whole text, namespace by namespace.
    #[must_use]
    pub fn text(&self) -> String {
        let mut sorted: Vec<_> = self.entries.iter().collect();
        sorted.sort_by_key(|(uid, entry)| (&entry.namespace, &entry.name, *uid));
        let mut text = String::with_capacity(self.bytes);
        let mut namespace = None;
        for (uid, entry) in sorted {
            if namespace.replace(&entry.namespace) != Some(&entry.namespace) {
                text.push_str(&header(&entry.namespace));
            }
            text.push_str(&line(uid, entry));
        }

        text
    }

    /// The length of [`Self::text`].
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of the resource with this UID.
    #[must_use]
    pub fn entry(&self, uid: &str) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// All entries, by UID.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries.iter()
    }

    /// The number of allocations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no allocation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the entry of the resource with this UID.
    pub fn put(&mut self, uid: String, entry: Entry) {
        self.remove(&uid);
        let count = self.namespaces.entry(entry.namespace.clone()).or_default();
        if *count == 0 {
            self.bytes += header(&entry.namespace).len();
        }
        *count += 1;
        self.bytes += line(&uid, &entry).len();
        self.entries.insert(uid, entry);
    }

    /// [`Self::put`], unless the text would be too long for its object.
    #[must_use]
    pub(super) fn put_if_it_fits(&mut self, uid: String, entry: Entry) -> bool {
        let longer = header(&entry.namespace).len() + line(&uid, &entry).len();
        let fits = self.bytes + longer <= BYTES_MAX;
        if fits {
            self.put(uid, entry);
        }

        fits
    }

    /// Removes the entry of the resource with this UID.
    pub fn remove(&mut self, uid: &str) {
        let Some(entry) = self.entries.remove(uid) else { return };
        self.bytes -= line(uid, &entry).len();
        if let Some(count) = self.namespaces.get_mut(&entry.namespace) {
            *count -= 1;
            if *count == 0 {
                self.bytes -= header(&entry.namespace).len();
                self.namespaces.remove(&entry.namespace);
            }
        }
    }
}

fn header(namespace: &str) -> String {
    format!("[{namespace}]\n")
}

fn line(uid: &str, entry: &Entry) -> String {
    let (name, uid) = (&entry.name, short(uid));
    let mut line = match entry.allocation {
        Allocation::Address(address) => format!("{address} {name} {uid}"),
        Allocation::Prefix { prefix, .. } => format!("{prefix} {name} {uid}"),
    };
    if let Allocation::Prefix { is_shared, last, .. } = entry.allocation {
        if is_shared {
            line.push_str(" shared");
        }
        if let Some(last) = last {
            let _ = write!(line, " last={last}");
        }
    }
    line.push('\n');

    line
}

fn entry(namespace: &str, line: &str) -> Option<(String, Entry)> {
    let mut words = line.split(' ');
    let (what, name, uid) = (words.next()?, words.next()?, long(words.next()?)?);
    let mut allocation = if what.contains('/') {
        Allocation::Prefix { prefix: what.parse().ok()?, is_shared: false, last: None }
    } else {
        Allocation::Address(what.parse().ok()?)
    };
    for word in words {
        let Allocation::Prefix { is_shared, last, .. } = &mut allocation else { return None };
        if word == "shared" {
            *is_shared = true;
        } else {
            *last = Some(word.strip_prefix("last=")?.parse().ok()?);
        }
    }
    let entry = Entry { namespace: namespace.to_owned(), name: name.to_owned(), allocation };

    Some((uid, entry))
}

/// A UID in fewer digits. One that is not in the format of Kubernetes is kept as it is, after a sign.
fn short(uid: &str) -> String {
    let number = u128::from_str_radix(&uid.replace('-', ""), 16).ok();
    let Some(mut number) = number.filter(|number| dashed(*number) == uid) else {
        return format!("={uid}");
    };
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        let digit = u32::try_from(number % u128::from(BASE)).ok();
        digits.extend(digit.and_then(|digit| char::from_digit(digit, BASE)));
        number /= u128::from(BASE);
    }

    digits.into_iter().rev().collect()
}

fn long(short: &str) -> Option<String> {
    match short.strip_prefix('=') {
        Some(uid) => Some(uid.to_owned()),
        None => u128::from_str_radix(short, BASE).ok().map(dashed),
    }
}

fn dashed(number: u128) -> String {
    let mut digits = format!("{number:032x}");
    for place in [20, 16, 12, 8] {
        digits.insert(place, '-');
    }

    digits
}
