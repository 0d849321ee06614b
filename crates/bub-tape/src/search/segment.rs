//! A segment of the search index: the terms of up to [`MAX_SEGMENT_BYTES`] of lines, as one immutable file.
//!
//! ```text
//! header       magic, counts, checksums
//! documents    one array each: length codes, kinds, seconds, offsets
//! blocks       for each block of terms: first hash, offsets of its terms and postings, checksum
//! terms        for each term: difference to the previous hash, number of documents, bytes of postings
//! postings     for each term: documents as differences, term frequencies, checksum
//! ```
//!
//! A document is a line of a tape. Terms are stored as hashes, because the lines of the best documents are read and
//! compared anyway. All integers are little-endian or of variable length.

use std::{
    borrow::Cow,
    io,
    ops::Range,
    sync::{Arc, LazyLock},
};

use memchr::memmem::Finder;

use super::{
    SEARCH_MARKER,
    entry_text::{EntryHead, EntryText, NO_ENTRY, visit_entry, visit_line},
    tokens::{for_each_token, hash_term, normalize},
};
use crate::{Entry, codec, fs::FsFile};

/// Maximum size of the lines of a segment.
const MAX_SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Maximum number of terms of the lines of a segment. They are sorted in memory.
const MAX_SEGMENT_TOKENS: usize = 2_000_000;
const MAGIC: &[u8; 8] = b"bubseg1\n";
const HEADER_BYTES: usize = 48;
const BLOCK_TERMS: usize = 64;
const BLOCK_BYTES: usize = 16;
/// Set in the kind of a document that contains the output of a search.
pub(super) const SEARCH_OUTPUT: u8 = 0x40;
/// Number of lengths that have their own code. Larger lengths are rounded down to steps of a sixteenth of an octave.
const EXACT_LENGTHS: u32 = 64;

static MARKER_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(SEARCH_MARKER));

/// Returns the hash of an author's name. It differs from the hash of the word, so that `from:` finds only authors.
pub(super) fn author_hash(name: &[u8]) -> u32 {
    hash_term(name).rotate_left(16) ^ 0x5bd1_e995
}

/// Returns the code of a document length, which is a number of terms.
fn length_code(length: u32) -> u8 {
    if length < EXACT_LENGTHS {
        return u8::try_from(length).unwrap_or(u8::MAX);
    }
    let octave = length.ilog2() - EXACT_LENGTHS.ilog2();
    let step = (length >> (octave + 2)) & 15;
    u8::try_from(EXACT_LENGTHS + octave * 16 + step).unwrap_or(u8::MAX)
}

/// Returns the smallest document length with this code.
pub(super) fn decode_length(code: u8) -> u32 {
    let code = u32::from(code);
    if code < EXACT_LENGTHS {
        return code;
    }
    let (octave, step) = ((code - EXACT_LENGTHS) / 16, (code - EXACT_LENGTHS) % 16);
    (16 + step) << (octave + 2)
}

/// Collects the terms of lines.
#[derive(Debug, Default)]
pub(crate) struct SegmentBuilder {
    /// For each term of each document: its hash in the high and the document in the low 32 bits.
    terms: Vec<u64>,
    lengths: Vec<u8>,
    kinds: Vec<u8>,
    seconds: Vec<u32>,
    offsets: Vec<u32>,
    bytes: u64,
}

impl SegmentBuilder {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= MAX_SEGMENT_BYTES || self.terms.len() >= MAX_SEGMENT_TOKENS
    }

    /// Returns the number of documents.
    pub(crate) fn documents(&self) -> u32 {
        u32::try_from(self.kinds.len()).unwrap_or(u32::MAX)
    }

    /// Adds a line as the next document.
    pub(crate) fn add_line(&mut self, offset: u32, line: &[u8]) {
        let first = self.terms.len();
        let mut document = DocumentTerms::new(self);
        let head = visit_line(line, &mut |text| document.add(text));
        let mut parsed = (document.length, document.is_search_output);
        let head = head.unwrap_or_else(|| {
            self.terms.truncate(first);
            let mut document = DocumentTerms::new(self);
            let none = EntryHead {
                kind: NO_ENTRY,
                seconds: 0,
            };
            let decoded = codec::decode(line);
            let head = decoded.map_or(none, |entry| {
                visit_entry(&entry, &mut |text| document.add(text))
            });
            parsed = (document.length, document.is_search_output);
            head
        });
        self.finish_document(head, parsed, offset);
        self.bytes += line.len() as u64;
    }

    /// Adds an entry as the next document.
    pub(crate) fn add_entry(&mut self, entry: &Entry) {
        let mut document = DocumentTerms::new(self);
        let head = visit_entry(entry, &mut |text| document.add(text));
        let parsed = (document.length, document.is_search_output);
        self.finish_document(head, parsed, 0);
    }

    fn finish_document(&mut self, head: EntryHead, (length, is_output): (u32, bool), offset: u32) {
        self.lengths.push(length_code(length));
        self.kinds
            .push(head.kind | if is_output { SEARCH_OUTPUT } else { 0 });
        self.seconds.push(head.seconds);
        self.offsets.push(offset);
    }

    /// Returns the content of the segment's file.
    pub(crate) fn build(mut self) -> Vec<u8> {
        sort_by_hash(&mut self.terms);
        let (mut blocks, mut dictionary, mut postings) = (Vec::new(), Vec::new(), Vec::new());
        let (mut count, mut previous, mut block_start) = (0_u32, 0, 0);
        for group in self.terms.chunk_by(|left, right| left >> 32 == right >> 32) {
            let hash = group.first().map_or(0, |term| high(*term));
            if (count as usize).is_multiple_of(BLOCK_TERMS) {
                finish_block(&mut blocks, dictionary.get(block_start..));
                block_start = dictionary.len();
                for value in [hash, to_u32(block_start), to_u32(postings.len())] {
                    blocks.extend_from_slice(&value.to_le_bytes());
                }
                previous = hash;
            }
            let start = postings.len();
            let documents = encode_postings(group, &mut postings);
            let checksum = short_checksum(postings.get(start..).unwrap_or_default());
            postings.extend_from_slice(&checksum);
            for value in [hash - previous, documents, to_u32(postings.len() - start)] {
                push_varint(&mut dictionary, value);
            }
            previous = hash;
            count += 1;
        }
        finish_block(&mut blocks, dictionary.get(block_start..));
        let seconds: Vec<u8> = self
            .seconds
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let offsets: Vec<u8> = self
            .offsets
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let sections = [
            [self.lengths, self.kinds].concat(),
            seconds,
            offsets,
            blocks,
        ];
        let mut file = MAGIC.to_vec();
        let documents = to_u32(self.seconds.len());
        for value in [
            documents,
            count,
            to_u32(dictionary.len()),
            to_u32(postings.len()),
        ] {
            file.extend_from_slice(&value.to_le_bytes());
        }
        for section in &sections {
            file.extend_from_slice(&crc32fast::hash(section).to_le_bytes());
        }
        file.extend_from_slice(&[0; 4]);
        let checksum = crc32fast::hash(&file);
        file.extend_from_slice(&checksum.to_le_bytes());
        for section in sections.into_iter().chain([dictionary, postings]) {
            file.extend_from_slice(&section);
        }
        file
    }
}

/// Adds the terms of one document to a builder.
struct DocumentTerms<'a> {
    terms: &'a mut Vec<u64>,
    document: u64,
    length: u32,
    is_search_output: bool,
}

impl<'a> DocumentTerms<'a> {
    fn new(builder: &'a mut SegmentBuilder) -> Self {
        Self {
            document: builder.kinds.len() as u64,
            terms: &mut builder.terms,
            length: 0,
            is_search_output: false,
        }
    }

    fn add(&mut self, text: EntryText<'_>) {
        let (terms, document) = (&mut *self.terms, self.document);
        match text {
            EntryText::Content(text) => {
                self.is_search_output |= MARKER_FINDER.find(text.as_bytes()).is_some();
                let before = terms.len();
                for_each_token(&normalize(text), &mut |token| {
                    terms.push(u64::from(token.stem_hash()) << 32 | document);
                });
                self.length += to_u32(terms.len() - before);
            }
            EntryText::Author(name) | EntryText::Speaker(name) => {
                for_each_token(&normalize(name), &mut |token| {
                    terms.push(u64::from(author_hash(token.text)) << 32 | document);
                });
            }
        }
    }
}

fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn high(term: u64) -> u32 {
    u32::try_from(term >> 32).unwrap_or_default()
}

/// Sorts terms by hash and keeps the order of documents. Radix sort by three bytes: a comparison sort takes twice as
/// long. With more bits per pass, the writes are spread over too many pages. The last byte seldom matters.
fn sort_by_hash(terms: &mut Vec<u64>) {
    let digits = |term: u64| {
        let [.., third, second, first] = term.to_le_bytes();
        [third, second, first]
    };
    let mut ends = [[0_usize; 256]; 3];
    for term in &*terms {
        for (ends, digit) in ends.iter_mut().zip(digits(*term)) {
            if let Some(end) = ends.get_mut(usize::from(digit)) {
                *end += 1;
            }
        }
    }
    let mut sorted = vec![0; terms.len()];
    for (pass, ends) in ends.iter_mut().enumerate() {
        let mut total = 0;
        for end in &mut *ends {
            total += std::mem::replace(end, total);
        }
        for term in &*terms {
            let digit = digits(*term).get(pass).copied().unwrap_or(0);
            if let Some(end) = ends.get_mut(usize::from(digit)) {
                if let Some(slot) = sorted.get_mut(*end) {
                    *slot = *term;
                }
                *end += 1;
            }
        }
        std::mem::swap(terms, &mut sorted);
    }
    for group in terms.chunk_by_mut(|left, right| left >> 40 == right >> 40) {
        if !group.is_sorted_by_key(|term| high(*term)) {
            group.sort_by_key(|term| high(*term));
        }
    }
}

/// Appends the postings of one term and returns the number of documents.
fn encode_postings(group: &[u64], postings: &mut Vec<u8>) -> u32 {
    let (mut documents, mut previous) = (0, 0);
    for same in group.chunk_by(|left, right| left == right) {
        let document = same.first().map_or(0, |term| *term & u64::from(u32::MAX));
        let document = u32::try_from(document).unwrap_or_default();
        let frequency = to_u32(same.len());
        push_varint(
            postings,
            (document - previous) << 1 | u32::from(frequency > 1),
        );
        if frequency > 1 {
            push_varint(postings, frequency);
        }
        previous = document;
        documents += 1;
    }
    documents
}

fn finish_block(blocks: &mut Vec<u8>, dictionary: Option<&[u8]>) {
    if !blocks.is_empty() {
        blocks.extend_from_slice(&crc32fast::hash(dictionary.unwrap_or_default()).to_le_bytes());
    }
}

fn short_checksum(bytes: &[u8]) -> [u8; 2] {
    let [first, second, ..] = crc32fast::hash(bytes).to_le_bytes();
    [first, second]
}

#[inline]
fn push_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        let [low, ..] = value.to_le_bytes();
        out.push(low | 0x80);
        value >>= 7;
    }
    let [last, ..] = value.to_le_bytes();
    out.push(last);
}

/// Reads an integer of variable length and removes it from `bytes`.
#[inline]
fn read_varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Calls `visit` with each document and term frequency of checked postings.
#[inline]
pub(super) fn for_each_posting(mut postings: &[u8], mut visit: impl FnMut(u32, u32)) {
    let mut document = 0_u32;
    while let Some(value) = read_varint(&mut postings) {
        document = document.wrapping_add(value >> 1);
        let frequency = if value & 1 == 1 {
            read_varint(&mut postings)
        } else {
            Some(1)
        };
        visit(document, frequency.unwrap_or(1));
    }
}

/// The content of a segment: a file, or bytes in memory.
#[derive(Debug, Clone)]
pub(crate) enum SegmentData {
    File(Arc<dyn FsFile>),
    Memory(Arc<[u8]>),
}

impl SegmentData {
    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let length =
            usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| invalid_error())?;
        match self {
            Self::File(file) => {
                let bytes = file.read_range(range.start, length)?;
                (bytes.len() == length)
                    .then_some(Cow::Owned(bytes))
                    .ok_or_else(invalid_error)
            }
            Self::Memory(bytes) => {
                let start = usize::try_from(range.start).unwrap_or(usize::MAX);
                let part = bytes.get(start..start.saturating_add(length));
                part.map(Cow::Borrowed).ok_or_else(invalid_error)
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.stat()?.size),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }
}

/// A segment that can be searched.
#[derive(Debug)]
pub(crate) struct Segment {
    data: SegmentData,
    documents: u32,
    checksums: [u32; 4],
    blocks: Vec<u8>,
    dictionary: Range<u64>,
    postings: Range<u64>,
}

/// A term in one segment.
pub(super) struct TermRecord {
    /// Number of documents with the term.
    pub(super) documents: u32,
    /// Bytes of the postings and their checksum in the file.
    postings: Range<u64>,
}

impl Segment {
    /// Opens a segment. Fails with [`io::ErrorKind::InvalidData`] if it is damaged.
    pub(crate) fn open(data: SegmentData) -> io::Result<Self> {
        let header = data.read(0..HEADER_BYTES as u64)?.into_owned();
        let (content, checksum) = header.split_last_chunk::<4>().ok_or_else(invalid_error)?;
        if !header.starts_with(MAGIC) || crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
            return Err(invalid_error());
        }
        let value = |index: usize| read_u32(&header, MAGIC.len() / 4 + index);
        let [documents, terms] = [value(0), value(1)];
        let blocks = HEADER_BYTES as u64 + u64::from(documents) * 10;
        let dictionary =
            blocks + u64::from(terms).div_ceil(BLOCK_TERMS as u64) * BLOCK_BYTES as u64;
        let postings = dictionary + u64::from(value(2));
        let end = postings + u64::from(value(3));
        if data.len()? != end {
            return Err(invalid_error());
        }
        let segment = Self {
            checksums: [value(4), value(5), value(6), value(7)],
            blocks: data.read(blocks..dictionary)?.into_owned(),
            documents,
            dictionary: dictionary..postings,
            postings: postings..end,
            data,
        };
        segment.check(3, &segment.blocks)?;
        Ok(segment)
    }

    /// Returns the number of documents.
    pub(crate) fn documents(&self) -> u32 {
        self.documents
    }

    /// Returns the length codes and kinds of the documents.
    pub(super) fn read_lengths_and_kinds(&self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut lengths = self.read_section(0, 0..2)?;
        let kinds = lengths.split_off(lengths.len() / 2);
        Ok((lengths, kinds))
    }

    /// Returns the dates of the documents in seconds.
    pub(super) fn read_seconds(&self) -> io::Result<Vec<u32>> {
        Ok(to_integers(&self.read_section(1, 2..6)?))
    }

    /// Returns the byte offsets of the documents.
    pub(super) fn read_offsets(&self) -> io::Result<Vec<u32>> {
        Ok(to_integers(&self.read_section(2, 6..10)?))
    }

    /// Reads arrays of the documents. `bytes` is the range of their bytes per document.
    fn read_section(&self, checksum: usize, bytes: Range<u64>) -> io::Result<Vec<u8>> {
        let start = |bytes: u64| HEADER_BYTES as u64 + u64::from(self.documents) * bytes;
        let section = self
            .data
            .read(start(bytes.start)..start(bytes.end))?
            .into_owned();
        self.check(checksum, &section)?;
        Ok(section)
    }

    fn check(&self, checksum: usize, section: &[u8]) -> io::Result<()> {
        let is_valid = self.checksums.get(checksum) == Some(&crc32fast::hash(section));
        is_valid.then_some(()).ok_or_else(invalid_error)
    }

    /// Returns the checked postings of a term.
    pub(super) fn read_postings(&self, term: &TermRecord) -> io::Result<Vec<u8>> {
        let mut postings = self.data.read(term.postings.clone())?.into_owned();
        let checksum = postings.split_off(postings.len().saturating_sub(2));
        let is_valid = checksum == short_checksum(&postings);
        is_valid.then_some(postings).ok_or_else(invalid_error)
    }

    /// Returns a term, or `None` if no document has it.
    pub(super) fn find_term(&self, hash: u32) -> io::Result<Option<TermRecord>> {
        let (blocks, _) = self.blocks.as_chunks::<BLOCK_BYTES>();
        let next = blocks.partition_point(|block| read_u32(block, 0) <= hash);
        let Some(block) = next.checked_sub(1).and_then(|index| blocks.get(index)) else {
            return Ok(None);
        };
        let start = self.dictionary.start + u64::from(read_u32(block, 1));
        let end = blocks.get(next).map_or(self.dictionary.end, |block| {
            self.dictionary.start + u64::from(read_u32(block, 1))
        });
        let terms = self.data.read(start..end)?;
        if crc32fast::hash(&terms) != read_u32(block, 3) {
            return Err(invalid_error());
        }
        let mut terms = &*terms;
        let mut current = read_u32(block, 0);
        let mut offset = self.postings.start + u64::from(read_u32(block, 2));
        while !terms.is_empty() {
            let mut next = || read_varint(&mut terms).ok_or_else(invalid_error);
            let (difference, documents, length) = (next()?, next()?, next()?);
            current = current.wrapping_add(difference);
            let end = offset + u64::from(length);
            if current == hash {
                return Ok(Some(TermRecord {
                    documents,
                    postings: offset..end,
                }));
            }
            offset = end;
        }
        Ok(None)
    }
}

fn invalid_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "damaged search index")
}

/// Returns an integer of a table, or 0 after its end.
fn read_u32(table: &[u8], index: usize) -> u32 {
    let (integers, _) = table.as_chunks::<4>();
    integers
        .get(index)
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn to_integers(bytes: &[u8]) -> Vec<u32> {
    let (integers, _) = bytes.as_chunks::<4>();
    integers
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect()
}
