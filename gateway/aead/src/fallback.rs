//! Processors other than x86-64 and arm64: no vectors.

use super::{KEY_LEN, Message, Nonce, TAG_LEN, Tags};

// Limits without effect.
pub(super) const FEWEST: usize = 1;
pub(super) const ALONE_FROM: usize = 1;
pub(super) const fn together_from(_len: usize) -> usize {
    FEWEST
}

/// Uninhabited.
#[derive(Clone, Copy)]
pub(super) enum Fallback {}

impl Fallback {
    pub(super) const NAME: &str = "none";

    pub(super) const fn detect() -> Option<Self> {
        None
    }

    pub(super) fn seal(self, _key: &[u8; KEY_LEN], _messages: &mut [Message<'_>]) -> Tags {
        match self {}
    }

    pub(super) fn open(self, _key: &[u8; KEY_LEN], _messages: &mut [Message<'_>]) -> Tags {
        match self {}
    }

    pub(super) fn seal_one(
        self,
        _key: &[u8; KEY_LEN],
        _nonce: Nonce,
        _text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        match self {}
    }

    pub(super) fn open_one(
        self,
        _key: &[u8; KEY_LEN],
        _nonce: Nonce,
        _text: &mut [u8],
        _tag: [u8; TAG_LEN],
    ) -> bool {
        match self {}
    }
}
