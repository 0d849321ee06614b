//! The search index of a store: segments with the terms of all tapes, and a catalog of them.
//!
//! ```text
//! .bub/search/catalog        the segments, and which lines of which tapes they contain
//! .bub/search/<number>.seg   a segment; see `search/segment.rs`
//! .bub/search/lock           held while the index is changed
//! ```
//!
//! All files may be deleted at any time. Nothing is indexed when a tape is written. A search compares the size of each
//! tape with the catalog and indexes the lines that are missing: in memory if they are few, else in new segments.
//! Segments never change. The catalog is replaced as a whole after a segment was written, so the end of the process at
//! any moment leaves a valid index. A search indexes a limited number of bytes and reports the rest, so that it never
//! blocks a turn for long. When there are many small segments, their lines are indexed again as one segment.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead as _},
    ops::Range,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::{
    context::{IoResultExt as _, StoreContext},
    index::{FileFingerprint, compute_fingerprint},
    lines,
    snapshot::Snapshot,
    tape_file::TapeLock,
};
use crate::{
    Entry, EntryRange, Result, TapeName, codec,
    fs::{FileStat, FsFile, OpenMode},
    search::{
        PartSource, SearchChunk, SearchPart, SearchParts, Segment, SegmentBuilder, SegmentData,
    },
};

const CATALOG_VERSION: u32 = 2;
/// Number of bytes that are indexed in memory for each search instead of being saved.
const MAX_UNSAVED_BYTES: u64 = 256 * 1024;
/// Number of attempts to open the segments of the catalog before the index counts as damaged.
const MAX_ATTEMPTS: usize = 3;
/// Number of segments of about the same size that are merged.
const MERGED_SEGMENTS: usize = 8;
/// Number of new segments after which the catalog is saved.
const SEGMENTS_PER_SAVE: usize = 8;
/// How long a search waits while another process changes the index.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of bytes to read for a line. Longer lines need more reads.
const LINE_BYTES: usize = 4 * 1024;

/// Reads entries of tapes by their offsets.
#[derive(Debug, Clone)]
pub(crate) struct TapeLines(Arc<StoreContext>);

impl TapeLines {
    /// Removes the search index and reports why.
    pub(crate) fn remove_search_index(&self, reason: &dyn fmt::Display) {
        tracing::warn!(%reason, hint = "the index is built again", "search.index_invalid");
        if let Err(error) = SearchIndex::remove(&self.0) {
            tracing::warn!(%error, "search.index_remove_failed");
        }
    }

    /// Returns the entry at a byte offset, or `None` if the tape has none there any more.
    pub(crate) fn read_entry(&self, tape: &TapeName, offset: u64) -> Result<Option<Entry>> {
        let path = self.0.paths.tape_file(tape);
        let Some(file) = self.0.open_existing(&path)? else {
            return Ok(None);
        };
        let mut line = Vec::new();
        loop {
            let length = line.len().max(LINE_BYTES);
            let next = file
                .read_range(offset + line.len() as u64, length)
                .describe("read", &path)?;
            let end = memchr::memchr(b'\n', &next);
            line.extend_from_slice(next.get(..end.unwrap_or(next.len())).unwrap_or_default());
            if end.is_some() || next.len() < length {
                return Ok(codec::decode(&line));
            }
        }
    }
}

/// The content of the index.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Catalog {
    version: u32,
    next_segment: u64,
    segments: BTreeMap<u64, SegmentRecord>,
    tapes: BTreeMap<String, TapeRecord>,
}

/// The lines in a segment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct SegmentRecord {
    /// Size of the lines in bytes, with lines of tapes that were replaced since.
    bytes: u64,
    is_full: bool,
    chunks: Vec<ChunkRecord>,
}

/// Consecutive lines of a tape in a segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ChunkRecord {
    tape: String,
    bytes: Range<u64>,
    documents: Range<u32>,
}

/// The state of a tape when it was indexed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TapeRecord {
    inode: u64,
    /// Size and time of the last write, in nanoseconds. The size is 0 if lines were being written.
    size: u64,
    modified: u64,
    /// Number of bytes that are indexed.
    covered: u64,
    fingerprint: FileFingerprint,
}

/// Lines to index. The file is opened when they are indexed, because there may be thousands.
#[derive(Debug, Clone)]
struct Tail {
    tape: TapeName,
    inode: u64,
    bytes: Range<u64>,
}

/// A new segment.
#[derive(Default)]
struct BuiltSegment {
    content: Vec<u8>,
    is_full: bool,
    chunks: Vec<ChunkRecord>,
    /// The state of each chunk's tape.
    tapes: Vec<TapeRecord>,
}

/// The index of a store.
pub(crate) struct SearchIndex<'a> {
    store: &'a Arc<StoreContext>,
    catalog: Catalog,
}

impl<'a> SearchIndex<'a> {
    /// Returns the searchable parts of tapes. Updates the index first.
    pub(crate) fn search_parts(
        store: &'a Arc<StoreContext>,
        scopes: &[(TapeName, EntryRange)],
    ) -> Result<SearchParts> {
        for _ in 0..MAX_ATTEMPTS {
            match Self::update(store, scopes) {
                // Another process may have merged segments meanwhile.
                Err(error) if error.is_invalid_data() => {}
                parts => return parts,
            }
        }
        TapeLines(Arc::clone(store)).remove_search_index(&"a segment is missing or damaged");
        Self::update(store, scopes)
    }

    fn update(
        store: &'a Arc<StoreContext>,
        scopes: &[(TapeName, EntryRange)],
    ) -> Result<SearchParts> {
        let mut index = Self {
            catalog: Catalog::load(store),
            store,
        };
        let mut tails = index.find_tails(scopes)?;
        let mut unindexed = 0;
        if missing_bytes(&tails) > MAX_UNSAVED_BYTES
            && let Ok(Some(_lock)) = index.lock()
        {
            // Another process may have indexed the lines meanwhile.
            index.catalog = Catalog::load(store);
            tails = index.find_tails(scopes)?;
            if missing_bytes(&tails) > MAX_UNSAVED_BYTES {
                let limit = store.index_limit.load(Ordering::Relaxed).max(1);
                limit_tails(&mut tails, limit);
                let saved = index.save_tails(tails, limit);
                if let Err(error) = &saved {
                    // Search without saving, for example if the disk is full.
                    tracing::warn!(%error, "search.index_save_failed");
                    index.catalog = Catalog::load(store);
                }
                tails = index.find_tails(scopes)?;
                if saved.is_ok() && missing_bytes(&tails) > MAX_UNSAVED_BYTES {
                    unindexed = missing_bytes(&tails);
                    tails.clear();
                }
            }
        }
        let mut parts = index.open_parts(scopes, &tails)?;
        parts.unindexed_bytes = unindexed;
        Ok(parts)
    }

    /// Removes all files of the index.
    pub(crate) fn remove(store: &Arc<StoreContext>) -> Result<()> {
        let index = SearchIndex {
            store,
            catalog: Catalog::default(),
        };
        let _lock = index.lock()?;
        store.remove_file(&store.paths.search_file("catalog"))?;
        index.remove_unused_segments()
    }

    /// Waits for the lock of the index. Returns `None` if another process holds it for too long.
    fn lock(&self) -> Result<Option<TapeLock>> {
        let path = self.store.paths.search_file("lock");
        let file = self.store.open_for_writing(&path, OpenMode::Write)?;
        let started = Instant::now();
        while !file.try_lock().describe("lock", &path)? {
            if started.elapsed() > LOCK_TIMEOUT {
                return Ok(None);
            }
            thread::sleep(LOCK_POLL_INTERVAL);
        }
        Ok(Some(TapeLock(file.into())))
    }

    /// Returns the lines of these tapes that are not indexed. Forgets lines of tapes that were replaced.
    fn find_tails(&mut self, scopes: &[(TapeName, EntryRange)]) -> Result<Vec<Tail>> {
        let mut tails = Vec::new();
        for (tape, _) in scopes {
            match self.find_tail(tape) {
                Ok(tail) => tails.extend(tail),
                // One tape that cannot be read must not prevent the search of the others.
                Err(error) if scopes.len() > 1 => {
                    tracing::warn!(%tape, %error, "search.tape_skipped");
                    self.catalog.forget(tape.as_str());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(tails)
    }

    fn find_tail(&mut self, tape: &TapeName) -> Result<Option<Tail>> {
        let stat = self.store.stat(&self.store.paths.tape_file(tape))?;
        let record = self.catalog.tapes.get(tape.as_str());
        if let (Some(record), Some(stat)) = (record, stat)
            && record.matches(&stat)
        {
            return Ok(None);
        }
        let Some(snapshot) = Snapshot::capture(self.store, tape)? else {
            self.catalog.forget(tape.as_str());
            return Ok(None);
        };
        let covered = match record {
            Some(record) if record.is_prefix_of(&snapshot) => record.covered,
            _ => {
                self.catalog.forget(tape.as_str());
                0
            }
        };
        Ok((covered < snapshot.end).then(|| Tail {
            tape: tape.clone(),
            inode: snapshot.inode,
            bytes: covered..snapshot.end,
        }))
    }

    /// Indexes lines and saves them in new segments, together with the lines of small segments. The caller must hold
    /// the lock. Stops after `limit` bytes, unless segments are merged, which must be complete.
    fn save_tails(&mut self, mut tails: Vec<Tail>, limit: u64) -> Result<()> {
        let names: Vec<String> = self.catalog.tapes.keys().cloned().collect();
        for name in names {
            let tape = TapeName::new(&name).ok();
            let path = tape.map(|tape| self.store.paths.tape_file(&tape));
            if path.is_none_or(|path| matches!(self.store.stat(&path), Ok(None))) {
                self.catalog.forget(&name);
            }
        }
        let replaced = self.catalog.mergeable_segments();
        for number in &replaced {
            let record = self.catalog.segments.get(number);
            for chunk in record.into_iter().flat_map(|record| &record.chunks) {
                let tape = TapeName::new(&chunk.tape).ok();
                let inode = self
                    .catalog
                    .tapes
                    .get(&chunk.tape)
                    .map(|record| record.inode);
                tails.extend(tape.zip(inode).map(|(tape, inode)| Tail {
                    tape,
                    inode,
                    bytes: chunk.bytes.clone(),
                }));
            }
        }
        tails.sort_by(|left, right| {
            (&left.tape, left.bytes.start).cmp(&(&right.tape, right.bytes.start))
        });
        let mut new = Vec::new();
        let limit = if replaced.is_empty() { limit } else { u64::MAX };
        build_segments(self.store, &tails, limit, |built| {
            let number = self.catalog.next_segment;
            self.catalog.next_segment += 1;
            let path = self.store.paths.search_file(&format!("{number}.seg"));
            self.store.replace_file(&path, &built.content, false)?;
            new.push((number, built));
            // Without merged lines, the segments so far can be used even if this process ends now.
            if replaced.is_empty() && new.len() >= SEGMENTS_PER_SAVE {
                self.catalog.add(&mut new);
                self.catalog.save(self.store)?;
            }
            Ok(())
        })?;
        for number in replaced {
            self.catalog.segments.remove(&number);
        }
        self.catalog.add(&mut new);
        self.catalog.save(self.store)?;
        self.remove_unused_segments()
    }

    /// Removes segments that the catalog does not have. The caller must hold the lock.
    fn remove_unused_segments(&self) -> Result<()> {
        let directory = self.store.paths.search_file("");
        for name in self.store.read_dir(&directory)? {
            let number = name.strip_suffix(".seg").map(str::parse::<u64>);
            if let Some(number) = number
                && number.is_ok_and(|number| !self.catalog.segments.contains_key(&number))
            {
                self.store.remove_file(&directory.join(&name))?;
            }
        }
        Ok(())
    }

    fn open_parts(&self, scopes: &[(TapeName, EntryRange)], tails: &[Tail]) -> Result<SearchParts> {
        let windows: BTreeMap<&str, (&TapeName, EntryRange)> = scopes
            .iter()
            .map(|(tape, range)| (tape.as_str(), (tape, *range)))
            .collect();
        let chunks = |records: &[ChunkRecord]| -> Vec<SearchChunk> {
            let chunk = |record: &ChunkRecord| {
                let (tape, window) = windows.get(record.tape.as_str())?;
                Some(SearchChunk {
                    tape: (*tape).clone(),
                    documents: record.documents.clone(),
                    start: record.bytes.start,
                    window: *window,
                })
            };
            records.iter().filter_map(chunk).collect()
        };
        let mut parts = Vec::new();
        let mut add = |data: SegmentData, chunks: Vec<SearchChunk>, path: PathBuf| {
            parts.push(SearchPart {
                segment: Segment::open(data).describe("read", &path)?,
                source: PartSource::Lines(TapeLines(Arc::clone(self.store))),
                chunks,
            });
            Ok(())
        };
        for (number, record) in &self.catalog.segments {
            let chunks = chunks(&record.chunks);
            if chunks.is_empty() {
                continue;
            }
            let path = self.store.paths.search_file(&format!("{number}.seg"));
            let Some(file) = self.store.open_existing(&path)? else {
                return Err(io::Error::from(io::ErrorKind::InvalidData)).describe("read", &path);
            };
            add(SegmentData::File(file.into()), chunks, path)?;
        }
        build_segments(self.store, tails, u64::MAX, |built| {
            let chunks = chunks(&built.chunks);
            add(
                SegmentData::Memory(built.content.into()),
                chunks,
                self.store.paths.search_file(""),
            )
        })?;
        Ok(SearchParts {
            parts,
            unindexed_bytes: 0,
        })
    }
}

impl Catalog {
    /// Loads the catalog. It is empty if it is missing or cannot be read.
    fn load(store: &StoreContext) -> Self {
        let catalog = match store.read_file(&store.paths.search_file("catalog")) {
            Ok(None) => return Self::default(),
            Ok(Some(bytes)) => Self::parse(&bytes).ok_or_else(|| "invalid content".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        catalog.unwrap_or_else(|reason| {
            tracing::warn!(
                reason,
                hint = "the index is built again",
                "search.catalog_invalid"
            );
            Self::default()
        })
    }

    /// Parses the content of a catalog: a checksum, then JSON.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (checksum, json) = bytes.split_first_chunk::<4>()?;
        (crc32fast::hash(json) == u32::from_le_bytes(*checksum)).then_some(())?;
        let catalog: Self = serde_json::from_slice(json).ok()?;
        (catalog.version == CATALOG_VERSION).then_some(catalog)
    }

    fn save(&mut self, store: &StoreContext) -> Result<()> {
        self.version = CATALOG_VERSION;
        let path = store.paths.search_file("catalog");
        let json = serde_json::to_vec(self)
            .map_err(io::Error::from)
            .describe("write", &path)?;
        let bytes = [&crc32fast::hash(&json).to_le_bytes(), json.as_slice()].concat();
        store.replace_file(&path, &bytes, false)
    }

    /// Removes a tape that was removed or replaced.
    fn forget(&mut self, tape: &str) {
        if self.tapes.remove(tape).is_some() {
            for record in self.segments.values_mut() {
                record.chunks.retain(|chunk| chunk.tape != tape);
            }
            self.segments.retain(|_, record| !record.chunks.is_empty());
        }
    }

    /// Returns segments to index again as one: those with many removed lines, and small ones if there are enough of
    /// about the same size. So each line is indexed again at most twice.
    fn mergeable_segments(&self) -> Vec<u64> {
        let (mut merged, mut tiers) = (Vec::new(), BTreeMap::<u32, Vec<u64>>::new());
        for (number, record) in &self.segments {
            let live: u64 = record.chunks.iter().map(ChunkRecord::length).sum();
            if live < record.bytes / 2 {
                merged.push(*number);
            } else if !record.is_full {
                let tier = (live / MAX_UNSAVED_BYTES).max(1).ilog2() / MERGED_SEGMENTS.ilog2();
                tiers.entry(tier).or_default().push(*number);
            }
        }
        let tiers = tiers
            .into_values()
            .filter(|tier| tier.len() >= MERGED_SEGMENTS);
        merged.extend(tiers.flatten());
        merged
    }

    /// Adds new segments and the state of their tapes.
    fn add(&mut self, new: &mut Vec<(u64, BuiltSegment)>) {
        for (number, built) in new.drain(..) {
            for (chunk, tape) in built.chunks.iter().zip(built.tapes) {
                let known = self.tapes.get(&chunk.tape);
                if known.is_none_or(|known| known.covered < tape.covered) {
                    self.tapes.insert(chunk.tape.clone(), tape);
                }
            }
            let record = SegmentRecord {
                bytes: built.chunks.iter().map(ChunkRecord::length).sum(),
                is_full: built.is_full,
                chunks: built.chunks,
            };
            self.segments.insert(number, record);
        }
    }
}

/// Keeps tails with about this number of bytes. The smallest are kept: they belong to most of the tapes.
fn limit_tails(tails: &mut Vec<Tail>, limit: u64) {
    tails.sort_by_key(|tail| tail.bytes.end - tail.bytes.start);
    let mut kept = 0;
    tails.retain(|tail| {
        let is_kept = kept < limit;
        kept += tail.bytes.end - tail.bytes.start;
        is_kept
    });
}

fn missing_bytes(tails: &[Tail]) -> u64 {
    tails
        .iter()
        .map(|tail| tail.bytes.end - tail.bytes.start)
        .sum()
}

impl ChunkRecord {
    fn length(&self) -> u64 {
        self.bytes.end.saturating_sub(self.bytes.start)
    }
}

impl TapeRecord {
    fn new(file: &dyn FsFile, covered: u64) -> io::Result<Self> {
        let stat = file.stat()?;
        Ok(Self {
            inode: stat.inode,
            size: if covered == stat.size { stat.size } else { 0 },
            modified: modified_nanos(&stat),
            covered,
            fingerprint: compute_fingerprint(file, covered)?,
        })
    }

    /// Returns whether the tape is unchanged and indexed completely.
    fn matches(&self, stat: &FileStat) -> bool {
        self.inode == stat.inode
            && self.size == stat.size
            && self.size != 0
            && self.modified == modified_nanos(stat)
    }

    /// Returns whether the indexed lines are the start of the tape.
    fn is_prefix_of(&self, snapshot: &Snapshot) -> bool {
        self.inode == snapshot.inode
            && self.covered <= snapshot.end
            && compute_fingerprint(&*snapshot.file, self.covered)
                .is_ok_and(|actual| actual == self.fingerprint)
    }
}

fn modified_nanos(stat: &FileStat) -> u64 {
    let since = stat
        .modified
        .and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| u64::try_from(since.as_nanos()).ok())
        .unwrap_or(0)
}

/// Indexes lines. Calls `on_segment` with each segment that is full, and with the last one. Skips tapes that were
/// replaced meanwhile. Stops after `limit` bytes.
fn build_segments(
    store: &StoreContext,
    tails: &[Tail],
    limit: u64,
    mut on_segment: impl FnMut(BuiltSegment) -> Result<()>,
) -> Result<()> {
    let mut builder = SegmentBuilder::default();
    let mut built = BuiltSegment::default();
    let (mut line, mut total) = (Vec::new(), 0);
    for tail in tails {
        if total >= limit {
            break;
        }
        let path = store.paths.tape_file(&tail.tape);
        let Some(file) = store.open_existing(&path)? else {
            continue;
        };
        if file.stat().describe("read", &path)?.inode != tail.inode {
            continue;
        }
        let mut reader = lines::scan(&*file, tail.bytes.clone());
        let mut chunk = ChunkRecord {
            tape: tail.tape.to_string(),
            bytes: tail.bytes.start..tail.bytes.start,
            documents: builder.documents()..builder.documents(),
        };
        loop {
            line.clear();
            let length = reader
                .read_until(b'\n', &mut line)
                .describe("read", &path)?;
            let start = u32::try_from(chunk.bytes.end - chunk.bytes.start).unwrap_or(u32::MAX);
            if length > 0 {
                builder.add_line(start, &line);
                chunk.bytes.end += length as u64;
                chunk.documents.end = builder.documents();
                total += length as u64;
            }
            let is_full = builder.is_full();
            let is_last = length == 0 || total >= limit;
            if (is_last || is_full) && !chunk.documents.is_empty() {
                let record = TapeRecord::new(&*file, chunk.bytes.end).describe("read", &path)?;
                let end = chunk.bytes.end;
                let next = ChunkRecord {
                    bytes: end..end,
                    documents: 0..0,
                    tape: chunk.tape.clone(),
                };
                built.chunks.push(std::mem::replace(&mut chunk, next));
                built.tapes.push(record);
            }
            if is_full {
                built.content = std::mem::take(&mut builder).build();
                built.is_full = true;
                on_segment(std::mem::take(&mut built))?;
            }
            if is_last {
                break;
            }
        }
    }
    if builder.documents() > 0 {
        built.content = builder.build();
        on_segment(built)?;
    }
    Ok(())
}
