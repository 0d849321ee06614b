//! Append-only tapes. A tape records everything that happens in a session.
//!
//! - [`Entry`] is one immutable record; [`codec`] reads and writes it as one line of JSON.
//! - [`TapeStore`] is the interface of a store. [`MemoryStore`] and [`FileStore`] implement it. Test other
//!   implementations with `testing::check_store` (feature `testing`).
//! - [`Tape`] is the handle the runtime uses: append, handoff, reset, step records, sidecars, forks, leases.
//! - [`Query`] selects entries. [`TapeContext`] selects the entries of a [`View`], the messages for a model call.
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
pub mod codec;
mod context;
mod entry;
mod error;
mod file;
mod fork;
pub mod fs;
mod json;
mod lifecycle;
mod line_filter;
pub mod media;
mod memory;
mod query;
mod search;
mod session_copy;
mod sidecar;
mod step_record;
mod store;
mod summary;
mod tape;
mod tape_name;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
mod view;

pub use async_trait::async_trait;
pub use blob::{BlobId, BlobStore};
pub use context::{AnchorSelector, Selector, TapeContext};
pub use entry::{Entry, EntryId, EntryKind};
pub use error::{TapeError, TapeErrorKind};
pub use file::{
    ChainProblem, ChainReport, Damage, Durability, ExportSeal, FileStore, MissingTape, ProvenEntry,
    RepairReport, UnprovenEntry, UnusedFile, UnusedFileKind, VerifyReport,
};
pub use fork::{Fork, ForkRecovery, MergeBack, MergeReport, recover_forks};
pub use json::parse_json_lossy;
pub use line_filter::LineFilter;
pub use memory::MemoryStore;
pub use query::{AnchorWindow, DateRange, Order, Query};
pub use search::{SEARCH_MARKER, Search, SearchHit, SearchParts, SearchResults};
pub use sidecar::Sidecar;
pub use step_record::{StepRecord, SystemPrompt, SystemPromptRecord};
pub use store::{
    AnchorMark, AnchorQuery, AppendReceipt, EntryRange, EntryStream, InitialEntriesFn, Lease,
    LeaseWait, MAX_DRAFT_BYTES, Position, ResetOutcome, ResetRequest, TapeListFilter, TapeStore,
};
pub use summary::{RecordedUsage, SessionInfo, TapeSummary, message_text};
pub use tape::{ResetReport, Tape, TapeInfo, handoff_entries};
pub use tape_name::{SESSION_START, TapeName};
pub use time::{archive_stamp, new_run_id, now_iso};
pub use view::{
    ChatMessage, HandoffSlots, HandoffSource, INTERRUPTED_RESULT, MOVED_KEY, MediaLimit,
    PROVENANCE_KEY, REPLACES_KEY, TOOL_DONE_EVENT, View, ViewOptions, tool_done_event,
};

/// A `Result` with [`TapeError`] as the default error.
pub type Result<T, E = TapeError> = std::result::Result<T, E>;
