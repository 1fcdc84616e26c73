//! Fuzz target bodies as plain functions.
//!
//! Each accepts any bytes, and panics if a property in its description does not hold. Where [`oracle`]
//! has a slow definition of the result, the body compares with it.
//!
//! `cargo test` replays the corpora, every crash found so far, and random bytes. `make fuzz` runs
//! libFuzzer, guided by coverage; see `fuzz/run`.

#![forbid(unsafe_code)]

pub mod oracle;

mod aead;
mod coalesce;
mod handover;
mod message;
mod overlay;
mod parse;
mod rewrite;
mod segment;
mod session;
mod table;
mod translate;
mod uapi;

pub use aead::aead;
pub use coalesce::coalesce;
pub use handover::handover;
pub use message::message;
pub use overlay::overlay;
pub use parse::parse;
pub use rewrite::rewrite;
pub use segment::segment;
pub use session::session;
pub use table::table;
pub use translate::translate;
pub use uapi::uapi;

/// A fuzz target: its name, which is also that of its corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 12] = [
    ("aead", aead),
    ("parse", parse),
    ("rewrite", rewrite),
    ("segment", segment),
    ("session", session),
    ("coalesce", coalesce),
    ("handover", handover),
    ("message", message),
    ("overlay", overlay),
    ("table", table),
    ("translate", translate),
    ("uapi", uapi),
];
