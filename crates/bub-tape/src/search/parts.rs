//! The searchable parts of tapes. A store provides them; ranking does not depend on the store.

use std::{ops::Range, sync::Arc};

use futures_util::TryStreamExt as _;

use super::{
    entry_text::kind_code,
    segment::{Segment, SegmentBuilder, SegmentData, decode_length},
};
use crate::{
    Entry, EntryKind, EntryRange, Position, Result, TapeError, TapeName, TapeStore, file::TapeLines,
};

/// The searchable parts of tapes, for [`TapeStore::search_parts`].
#[derive(Debug, Default)]
pub struct SearchParts {
    pub(crate) parts: Vec<SearchPart>,
    /// Number of bytes of the tapes that are in no part, because indexing them takes too long for one search.
    pub(crate) unindexed_bytes: u64,
}

/// A segment with the documents of one or more tapes.
#[derive(Debug)]
pub(crate) struct SearchPart {
    pub(crate) segment: Segment,
    /// The documents to search, in ascending order. Other documents of the segment belong to other tapes, or to tapes
    /// that were replaced.
    pub(crate) chunks: Vec<SearchChunk>,
    pub(crate) source: PartSource,
}

/// Consecutive lines of a tape in a segment.
#[derive(Debug, Clone)]
pub(crate) struct SearchChunk {
    pub(crate) tape: TapeName,
    /// The documents of the segment.
    pub(crate) documents: Range<u32>,
    /// Byte offset of the first line on the tape. The offsets in the segment are relative to it.
    pub(crate) start: u64,
    /// The entries to search.
    pub(crate) window: EntryRange,
}

/// Where the entries of a part are read.
#[derive(Debug)]
pub(crate) enum PartSource {
    /// On the tapes of a file store.
    Lines(TapeLines),
    /// In memory, one for each document.
    Entries(Vec<Entry>),
}

impl SearchParts {
    /// Reads the tapes completely. For stores without a search index.
    pub async fn read<S: TapeStore + ?Sized>(
        store: &S,
        scopes: &[(TapeName, EntryRange)],
    ) -> Result<Self> {
        let mut parts = Self::default();
        for (tape, range) in scopes {
            let entries = store.read(tape, *range).try_collect().await?;
            parts.add_entries(tape, entries)?;
        }
        Ok(parts)
    }

    /// Removes the index after an error that shows that it is damaged. The next search builds it again.
    pub(crate) fn remove_invalid_index(&self, error: &TapeError) {
        let lines = self.parts.iter().find_map(|part| match &part.source {
            PartSource::Lines(lines) => Some(lines),
            PartSource::Entries(_) => None,
        });
        if let Some(lines) = lines.filter(|_| error.is_invalid_data()) {
            lines.remove_search_index(error);
        }
    }

    /// Adds the last entries of a tape.
    pub(crate) fn add_entries(&mut self, tape: &TapeName, entries: Vec<Entry>) -> Result<()> {
        let mut builder = SegmentBuilder::default();
        for entry in &entries {
            builder.add_entry(entry);
        }
        let chunk = SearchChunk {
            tape: tape.clone(),
            documents: 0..builder.documents(),
            start: 0,
            window: EntryRange::ALL,
        };
        let data = SegmentData::Memory(Arc::from(builder.build()));
        let segment = Segment::open(data)
            .map_err(|error| TapeError::from_io("search", tape.as_str().as_ref(), error))?;
        self.parts.push(SearchPart {
            segment,
            chunks: vec![chunk],
            source: PartSource::Entries(entries),
        });
        Ok(())
    }
}

impl SearchPart {
    /// Returns whether all documents of the segment are searched.
    pub(crate) fn is_complete(&self) -> bool {
        let lengths = self.chunks.iter().map(|chunk| chunk.documents.len());
        let documents: usize = lengths.sum();
        documents == self.segment.documents() as usize
    }

    /// Returns the chunk of a document.
    pub(crate) fn chunk_of(&self, document: u32) -> Option<&SearchChunk> {
        let index = self
            .chunks
            .partition_point(|chunk| chunk.documents.end <= document);
        self.chunks
            .get(index)
            .filter(|chunk| chunk.documents.contains(&document))
    }

    /// Returns the entry of a document, or `None` if it was removed.
    pub(crate) fn read_entry(&self, document: u32, offset: u32) -> Result<Option<Entry>> {
        match &self.source {
            PartSource::Entries(entries) => Ok(entries.get(document as usize).cloned()),
            PartSource::Lines(lines) => match self.chunk_of(document) {
                Some(chunk) => lines.read_entry(&chunk.tape, chunk.start + u64::from(offset)),
                None => Ok(None),
            },
        }
    }
}

impl SearchChunk {
    /// Returns whether a document at this offset is in the window.
    pub(crate) fn has_in_window(&self, offset: u32) -> bool {
        self.window
            .contains(Position::new(self.start + u64::from(offset)))
    }
}

/// Counts of documents, for the scores of terms and documents.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DocumentCounts {
    pub(super) documents: u64,
    messages: u64,
    message_terms: u64,
}

impl DocumentCounts {
    /// Adds the documents of a chunk.
    pub(super) fn add(&mut self, chunk: &SearchChunk, lengths: &[u8], kinds: &[u8]) {
        let range = chunk.documents.start as usize..chunk.documents.end as usize;
        let (lengths, kinds) = (lengths.get(range.clone()), kinds.get(range));
        let message = kind_code(&EntryKind::Message);
        for (length, kind) in lengths
            .into_iter()
            .flatten()
            .zip(kinds.into_iter().flatten())
        {
            if *kind == message {
                self.messages += 1;
                self.message_terms += u64::from(decode_length(*length));
            }
        }
        self.documents += chunk.documents.len() as u64;
    }

    /// Returns the average number of terms of a message.
    pub(super) fn average_length(&self) -> f32 {
        (self.message_terms as f32 / self.messages.max(1) as f32).max(1.0)
    }
}
