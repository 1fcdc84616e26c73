//! Publication: one writer replaces a value, many readers load it.
//!
//! The value is a [`Table`](crate::Table), or a table with other data of the same generation that
//! the packet path needs.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

/// Creates the publisher and the first reader, with the value `initial`.
#[must_use]
pub fn channel<T>(initial: T) -> (Publisher<T>, Reader<T>) {
    let shared = Arc::new(ArcSwap::from_pointee(initial));

    let publisher = Publisher { shared: Arc::clone(&shared), retired: Vec::new() };

    (publisher, Reader { cache: Cache::new(shared) })
}

/// Publishes values; for the control plane. Not `Clone`: one writer, one order of generations.
#[derive(Debug)]
pub struct Publisher<T> {
    shared: Arc<ArcSwap<T>>,
    /// Values that a reader may still hold. The publisher frees them, because freeing a large one would
    /// delay a packet thread.
    retired: Vec<Arc<T>>,
}

impl<T> Publisher<T> {
    /// Publishes `value`: every reader sees it from its next batch on.
    ///
    /// Frees earlier values that no reader holds any more.
    pub fn publish(&mut self, value: T) {
        self.retired.push(self.shared.swap(Arc::new(value)));
        self.free_retired();
    }

    /// Frees earlier values that no reader holds any more. Call it periodically: there may be no further
    /// publication, and a retired value takes as much memory as the current one.
    pub fn free_retired(&mut self) {
        self.retired.retain(|value| Arc::strong_count(value) > 1);
    }

    /// The published value.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.shared.load_full()
    }
}

/// Loads the published value; for a packet thread. Each thread has a clone of its own.
///
/// Holds the last value it loaded, so a thread that never calls [`Reader::load`] keeps an old
/// value in memory.
#[derive(Debug)]
pub struct Reader<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Reader<T> {
    /// The current value. Call it once per *batch* and use the result for the whole batch.
    #[inline]
    pub fn load(&mut self) -> &T {
        self.cache.load()
    }

    /// Like [`Self::load`], for callers that keep the value.
    #[inline]
    pub fn load_arc(&mut self) -> &Arc<T> {
        self.cache.load()
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, Table};

    #[test]
    fn publisher_frees_retired_values() {
        let (mut publisher, mut reader) = channel(Arc::new(()));
        let first = Arc::downgrade(reader.load());

        publisher.publish(Arc::new(()));
        reader.load();
        assert!(first.upgrade().is_some(), "the reader must not free it");
        publisher.free_retired();

        assert!(first.upgrade().is_none());
    }

    #[test]
    fn publication_frees_earlier_values() {
        let (mut publisher, mut reader) = channel(Arc::new(()));
        let first = Arc::downgrade(reader.load());

        publisher.publish(Arc::new(()));
        reader.load();
        publisher.publish(Arc::new(()));

        assert!(first.upgrade().is_none());
    }

    #[test]
    fn readers_see_publications_at_next_load() {
        let (mut publisher, mut first) = channel(Table::default());
        let mut second = first.clone();

        publisher.publish(Table::build(7, &Cluster::default(), []).0);

        assert_eq!(first.load().generation(), 7);
        assert_eq!(second.load().generation(), 7);
        assert_eq!(publisher.current().generation(), 7);
    }
}
