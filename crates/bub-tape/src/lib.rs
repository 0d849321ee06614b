//! Append-only tapes: the record of everything that happened in a session.
//!
//! - [`Entry`] is one immutable fact; [`codec`] reads and writes it as one line of JSON.
//! - [`TapeStore`] is the contract of a store; [`MemoryStore`] and `FileStore` implement it, and
//!   any other store proves itself with the `conformance` suite.
//! - [`Tape`] is the handle the runtime works with: append, handoff, reset, record of a chat step,
//!   sidecars, forks, leases.
//! - [`Query`] says which entries are wanted, [`TapeContext`] how they become model messages.
//!
//! ```
//! use std::sync::Arc;
//! use bub_tape::{Entry, MemoryStore, Tape, TapeName};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let tape = Tape::new(Arc::new(MemoryStore::new()), TapeName::new("demo__tape")?);
//! tape.append(Entry::message("user", "hello")).await?;
//! assert_eq!(tape.info().await?.entries, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blob;
mod chat;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod context;
mod entry;
mod error;
mod file;
mod fork;
pub mod fs;
mod json;
mod lifecycle;
pub mod media;
mod memory;
mod names;
mod query;
mod search;
mod sidecar;
mod sieve;
mod store;
mod summary;
mod tape;
mod time;
mod view;

pub use blob::{BlobId, BlobStore};
pub use chat::ChatStep;
pub use context::{AnchorSelector, Selector, TapeContext};
pub use entry::{Entry, EntryId, Kind};
pub use error::{ErrorKind, TapeError};
pub use file::{Damage, Durability, FileStore, Leftover, LeftoverKind, Repaired, Verdict};
pub use fork::{Fork, MergeBack, Merged, Recovered, recover, recover_all};
pub use json::parse_lossy;
pub use memory::MemoryStore;
pub use names::{SESSION_START, TapeName};
pub use query::{DateRange, Order, Query, Window};
pub use search::{Found, Hit, SEARCH_MARKER, Search};
pub use sidecar::Sidecar;
pub use sieve::Sieve;
pub use store::{
    AnchorMark, AnchorSearch, Appended, BoxFuture, EntryStream, Lease, Listing, Opening, Position,
    Reset, ResetOutcome, Span, TapeStore, Wait,
};
pub use summary::{SessionInfo, Summary, Usage};
pub use tape::{ResetReport, Tape, TapeInfo, handoff_entries};
pub use time::{archive_stamp, now_iso, run_id};
pub use view::{
    INTERRUPTED, Message, OPENING_LINE, REPLACES, TOOL_DONE, View, ViewOptions, tool_done,
};

/// What every fallible operation of this crate returns.
pub type Result<T, E = TapeError> = std::result::Result<T, E>;
