//! Queries, searches and views of tapes made of any lines.
//!
//! The input is a query of a few lines (text, start, end, flags), then the tape. The result must
//! not depend on whether lines are filtered before they are decoded.

use std::sync::Arc;

use bub_tape::{
    AnchorMark, AnchorQuery, AppendReceipt, BlobStore, Entry, EntryId, EntryKind, EntryRange,
    EntryStream, Lease, LeaseWait, LineFilter, MemoryStore, Order, Position, Query, ResetOutcome,
    ResetRequest, Result, Search, Tape, TapeListFilter, TapeName, TapeStore, TapeSummary,
    ViewOptions, async_trait, codec,
};
use futures_util::{FutureExt as _, stream};

/// A tape of raw lines; it optionally passes them to line filters.
#[derive(Debug)]
struct Lines {
    all: Vec<(u64, Vec<u8>)>,
    sifting: bool,
    rest: MemoryStore,
}

impl Lines {
    /// Parses lines and their positions. Skips lines with duplicate keys, because which one counts
    /// is unspecified.
    fn new(bytes: &[u8], sifting: bool) -> Self {
        let mut at = 0;
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(|line| {
            at += line.len();
            ((at - line.len()) as u64, line.to_vec())
        });
        let once = |line: &[u8], key: &[u8]| {
            line.windows(key.len()).filter(|part| *part == key).count() <= 1
        };
        let lines = lines
            .filter(|(_, line)| once(line, b"kind") && once(line, b"date"))
            .collect();
        Self {
            all: lines,
            sifting,
            rest: MemoryStore::new(),
        }
    }

    fn inside(&self, span: EntryRange) -> impl Iterator<Item = &[u8]> {
        let inside = self
            .all
            .iter()
            .filter(move |(at, _)| span.contains(Position::new(*at)));
        inside.map(|(_, line)| line.as_slice())
    }

    fn ordered<T>(mut items: Vec<T>, span: EntryRange) -> Vec<T> {
        if span.order == Order::NewestFirst {
            items.reverse();
        }
        items
    }
}

#[async_trait]
impl TapeStore for Lines {
    async fn list(&self, listing: TapeListFilter) -> Result<Vec<TapeName>> {
        self.rest.list(listing).await
    }

    async fn append(&self, tape: &TapeName, batch: Vec<Entry>) -> Result<AppendReceipt> {
        self.rest.append(tape, batch).await
    }

    fn read<'a>(&'a self, _: &'a TapeName, span: EntryRange) -> EntryStream<'a> {
        let entries = self
            .inside(span)
            .filter_map(codec::decode)
            .map(Ok)
            .collect();
        Box::pin(stream::iter(Self::ordered(entries, span)))
    }

    fn read_filtered<'a>(
        &'a self,
        tape: &'a TapeName,
        span: EntryRange,
        line_filter: Arc<dyn LineFilter>,
    ) -> EntryStream<'a> {
        if !self.sifting {
            return self.read(tape, span);
        }
        let block = self.inside(span).collect::<Vec<_>>().concat();
        let mut kept = Vec::new();
        line_filter.filter(&block, &mut kept);
        assert!(
            kept.windows(2).all(|pair| pair[0].end <= pair[1].start),
            "lines in order, each once"
        );
        let entries = kept
            .into_iter()
            .filter_map(|line| codec::decode(&block[line]))
            .map(Ok)
            .collect();
        Box::pin(stream::iter(Self::ordered(entries, span)))
    }

    async fn fetch(&self, _: &TapeName, ids: &[EntryId]) -> Result<Vec<Entry>> {
        let entries = self.inside(EntryRange::ALL).filter_map(codec::decode);
        let found = entries.filter(|entry| ids.contains(&entry.id)).collect();
        Ok(found)
    }

    async fn anchors(&self, _: &TapeName, search: AnchorQuery) -> Result<Vec<AnchorMark>> {
        let entries = self
            .all
            .iter()
            .filter_map(|(at, line)| Some((*at, codec::decode(line)?)));
        let anchors = entries.filter(|(_, entry)| entry.kind == EntryKind::Anchor);
        let marks: Vec<AnchorMark> = anchors
            .map(|(at, entry)| AnchorMark {
                id: entry.id,
                name: entry.name().unwrap_or_default().to_owned(),
                position: Position::new(at),
            })
            .collect();
        Ok(search.select_marks(&marks))
    }

    async fn summary(&self, tape: &TapeName) -> Result<TapeSummary> {
        self.rest.summary(tape).await
    }

    async fn archive(&self, tape: &TapeName, stamp: &str) -> Result<String> {
        self.rest.archive(tape, stamp).await
    }

    async fn reset(&self, tape: &TapeName, reset: ResetRequest) -> Result<ResetOutcome> {
        self.rest.reset(tape, reset).await
    }

    async fn discard(&self, tape: &TapeName) -> Result<()> {
        self.rest.discard(tape).await
    }

    async fn lease(&self, tape: &TapeName, wait: LeaseWait) -> Result<Lease> {
        self.rest.lease(tape, wait).await
    }

    fn blobs(&self) -> Arc<dyn BlobStore> {
        self.rest.blobs()
    }
}

fn query(head: &[&str]) -> Query {
    let [text, start, end, flags] = head else {
        return Query::new();
    };
    let mut query = match flags.as_bytes().first() {
        Some(b'l') => Query::new().after_last_anchor(),
        Some(b'a') => Query::new().after_anchor(*text),
        Some(b'b') => Query::new().between_anchors(*start, *end),
        _ => Query::new(),
    };
    if flags.contains('t') {
        query = query.text(*text);
    }
    if flags.contains('s') {
        query = query.since(*start);
    }
    if flags.contains('e') {
        query = query.until(*end);
    }
    if flags.contains('k') {
        query = query.kinds([EntryKind::Message, EntryKind::ToolResult]);
    }
    if flags.contains('n') {
        query = query.newest_first();
    }
    if flags.contains('2') {
        query = query.limit(2);
    }
    query
}

pub(crate) fn check(bytes: &[u8]) {
    let mut parts = bytes.splitn(5, |byte| *byte == b'\n');
    let head: Vec<String> = parts
        .by_ref()
        .take(4)
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let tape = parts.next().unwrap_or_default();
    let query = query(&head);
    let search = Search {
        text: head.first().copied().unwrap_or_default().to_owned(),
        within: query.clone(),
        limit: 3,
        fuzzy: true,
        running_turn: None,
    };
    let options = ViewOptions::new();
    let answers: Vec<_> = [false, true]
        .into_iter()
        .map(|sifting| {
            let tape = Tape::new(
                Arc::new(Lines::new(tape, sifting)),
                TapeName::new("fuzz__tape").unwrap(),
            );
            let answer = async {
                let entries = tape
                    .query_all(query.clone())
                    .await
                    .map_err(|error| error.to_string());
                let found = tape
                    .search(&search)
                    .await
                    .map_err(|error| error.to_string());
                let view = tape.view(&options).await.map_err(|error| error.to_string());
                (entries, found, view)
            };
            // No future in here waits.
            answer.now_or_never().unwrap()
        })
        .collect();
    assert_eq!(answers[0].0, answers[1].0, "query");
    assert_eq!(answers[0].1, answers[1].1, "search");
    assert_eq!(answers[0].2, answers[1].2, "view");
}
