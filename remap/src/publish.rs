//! Publication: one writer replaces a value, many readers follow.
//!
//! The value is whatever must change as a whole: a [`Table`](crate::Table), or a table together with
//! what else the packet path needs of the same generation.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

/// Creates the writing and the first reading end, both at `initial`.
#[must_use]
pub fn channel<T>(initial: T) -> (Publisher<T>, Reader<T>) {
    let shared = Arc::new(ArcSwap::from_pointee(initial));

    let publisher = Publisher { shared: Arc::clone(&shared), retired: Vec::new() };

    (publisher, Reader { cache: Cache::new(shared) })
}

/// The control plane's end. Deliberately not `Clone`: one writer, one order of generations.
#[derive(Debug)]
pub struct Publisher<T> {
    shared: Arc<ArcSwap<T>>,
    /// Values that some reader may still hold. Freeing a large one takes time, which is ours to
    /// spend and not a packet thread's.
    retired: Vec<Arc<T>>,
}

impl<T> Publisher<T> {
    /// Makes `value` the one every reader sees from its next batch on.
    ///
    /// Frees earlier values that no reader holds any more.
    pub fn publish(&mut self, value: T) {
        self.retired.push(self.shared.swap(Arc::new(value)));
        self.free_retired();
    }

    /// Frees earlier values that no reader holds any more. To be called now and then: the next
    /// publication may never come, and what is retired takes as much memory as what is in force.
    pub fn free_retired(&mut self) {
        self.retired.retain(|value| Arc::strong_count(value) > 1);
    }

    /// What is published.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.shared.load_full()
    }
}

/// A packet thread's end. Clone one per thread; never share one.
///
/// Holds on to the last value it saw, so a thread that never calls [`Reader::load`] keeps an old
/// value alive.
#[derive(Debug)]
pub struct Reader<T> {
    cache: Cache<Arc<ArcSwap<T>>, Arc<T>>,
}

impl<T> Reader<T> {
    /// The current value. Call once per *batch*, then use the result for the whole batch.
    #[inline]
    pub fn load(&mut self) -> &T {
        self.cache.load()
    }

    /// Like [`Self::load`], for whoever wants to keep the value.
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
        assert!(first.upgrade().is_some(), "the reader must not be the one who frees it");
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
