//! Reads the text of Office documents: docx, xlsx, pptx, and the formats of `OpenDocument`.
//!
//! These files are zip archives of XML. They come from users, so everything has a limit: the number and the size of the
//! unpacked parts, and the length of the text. The time is proportional to these sizes. Entities that a document
//! declares are not expanded.

use std::io::{Cursor, Read as _};

use quick_xml::{Reader, events::Event};
use zip::ZipArchive;

/// Maximum number of parts in an archive.
const MAX_PARTS: usize = 5_000;
/// Maximum size of all unpacked parts that are read.
const MAX_UNPACKED_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of sheets or slides that are read.
const MAX_PAGES: usize = 500;

/// Returns the text of a document, at most about `max_chars` characters. The error is the reason why the document cannot
/// be read.
pub fn office_text(bytes: &[u8], max_chars: usize) -> Result<String, String> {
    let archive = ZipArchive::new(Cursor::new(bytes));
    let archive = archive.map_err(|error| format!("damaged archive: {error}"))?;
    if archive.len() > MAX_PARTS {
        return Err(format!("it has more than {MAX_PARTS} parts"));
    }
    let mut document = OfficeDocument {
        archive,
        unpacked: 0,
        text: LimitedText {
            text: String::new(),
            max_chars,
        },
    };
    if document.has_part("word/document.xml") {
        document.add_part("word/document.xml")?;
    } else if document.has_part("xl/workbook.xml") {
        document.add_sheets()?;
    } else if document.has_part("ppt/presentation.xml") {
        document.add_slides()?;
    } else if document.has_part("content.xml") {
        document.add_part("content.xml")?;
    } else {
        return Err("unsupported archive: only Office documents can be read".to_owned());
    }
    Ok(document.text.text.trim().to_owned())
}

/// Returns the text of a part of a document, read as paragraphs and as the rows of a sheet. For tests of the parser.
#[doc(hidden)]
pub fn office_part_text(xml: &str, max_chars: usize) -> [Result<String, String>; 2] {
    let new_text = || LimitedText {
        text: String::new(),
        max_chars,
    };
    let (mut paragraphs, mut rows) = (new_text(), new_text());
    let shared = ["shared".to_owned()];
    [
        add_paragraphs(xml, &mut paragraphs).map(|()| paragraphs.text),
        add_rows(xml, &shared, &mut rows).map(|()| rows.text),
    ]
}

/// A document that is being read.
struct OfficeDocument<'a> {
    archive: ZipArchive<Cursor<&'a [u8]>>,
    unpacked: u64,
    text: LimitedText,
}

/// A text with a maximum length.
struct LimitedText {
    text: String,
    max_chars: usize,
}

impl LimitedText {
    /// Appends text up to the maximum length.
    fn push(&mut self, more: &str) {
        // Bytes and not characters are counted, so the limit is a little lower for other scripts than Latin.
        let free = (4 * self.max_chars).saturating_sub(self.text.len());
        let end = more.floor_char_boundary(free);
        self.text.push_str(more.get(..end).unwrap_or_default());
    }

    fn is_full(&self) -> bool {
        self.text.len() + 4 > 4 * self.max_chars
    }

    fn end_line(&mut self) {
        let end = self.text.trim_end_matches('\t').len();
        self.text.truncate(end);
        self.push("\n");
    }
}

impl OfficeDocument<'_> {
    fn has_part(&self, name: &str) -> bool {
        self.archive.index_for_name(name).is_some()
    }

    /// Unpacks a part of the archive.
    fn unpack(&mut self, name: &str) -> Result<String, String> {
        let part = self.archive.by_name(name);
        let part = part.map_err(|error| format!("damaged archive: {error}"))?;
        let free = MAX_UNPACKED_BYTES.saturating_sub(self.unpacked);
        let mut bytes = Vec::new();
        let count = part.take(free + 1).read_to_end(&mut bytes);
        let count = count.map_err(|error| format!("damaged archive: {error}"))? as u64;
        if count > free {
            let limit = MAX_UNPACKED_BYTES / (1024 * 1024);
            return Err(format!("its unpacked text is larger than {limit} MiB"));
        }
        self.unpacked += count;
        String::from_utf8(bytes).map_err(|_| "damaged document: not valid UTF-8".to_owned())
    }

    fn add_part(&mut self, name: &str) -> Result<(), String> {
        let xml = self.unpack(name)?;
        add_paragraphs(&xml, &mut self.text)
    }

    fn add_slides(&mut self) -> Result<(), String> {
        for number in 1..=MAX_PAGES {
            let name = format!("ppt/slides/slide{number}.xml");
            if !self.has_part(&name) || self.text.is_full() {
                break;
            }
            self.text.push(&format!("\n[Slide {number}]\n"));
            self.add_part(&name)?;
        }
        Ok(())
    }

    fn add_sheets(&mut self) -> Result<(), String> {
        let shared = self.shared_strings()?;
        for number in 1..=MAX_PAGES {
            let name = format!("xl/worksheets/sheet{number}.xml");
            if !self.has_part(&name) || self.text.is_full() {
                break;
            }
            self.text.push(&format!("\n[Sheet {number}]\n"));
            let xml = self.unpack(&name)?;
            add_rows(&xml, &shared, &mut self.text)?;
        }
        Ok(())
    }

    /// Returns the texts that cells refer to by number.
    fn shared_strings(&mut self) -> Result<Vec<String>, String> {
        const NAME: &str = "xl/sharedStrings.xml";
        let mut strings: Vec<String> = Vec::new();
        if !self.has_part(NAME) {
            return Ok(strings);
        }
        let xml = self.unpack(NAME)?;
        let mut is_text = false;
        read_xml(&xml, |event| {
            match event {
                XmlEvent::Start("si", _) => strings.push(String::new()),
                XmlEvent::Start("t", _) => is_text = true,
                XmlEvent::End("t", _) => is_text = false,
                XmlEvent::Text(piece) if is_text => {
                    if let Some(last) = strings.last_mut() {
                        last.push_str(piece);
                    }
                }
                _ => {}
            }
            true
        })?;
        Ok(strings)
    }
}

/// Adds the text of a part with paragraphs and tables.
fn add_paragraphs(xml: &str, text: &mut LimitedText) -> Result<(), String> {
    // In OpenDocument, paragraphs contain their text directly; the other formats have elements for it.
    let (mut text_depth, mut deleted_depth) = (0_u32, 0_u32);
    read_xml(xml, |event| {
        match event {
            XmlEvent::Start("t" | "h", _) => text_depth += 1,
            XmlEvent::Start("p", is_open_document) if is_open_document => text_depth += 1,
            XmlEvent::Start("del" | "tracked-changes" | "annotation", _) => deleted_depth += 1,
            XmlEvent::Start("tab", _) => text.push("\t"),
            XmlEvent::Start("br" | "cr" | "line-break", _) => text.push("\n"),
            XmlEvent::Start("s", is_open_document) if is_open_document => text.push(" "),
            XmlEvent::End("t", _) => text_depth = text_depth.saturating_sub(1),
            XmlEvent::End("del" | "tracked-changes" | "annotation", _) => {
                deleted_depth = deleted_depth.saturating_sub(1);
            }
            XmlEvent::End("p" | "h", is_open_document) => {
                if is_open_document {
                    text_depth = text_depth.saturating_sub(1);
                }
                text.end_line();
            }
            XmlEvent::End("tc" | "table-cell", _) => {
                // The paragraph in the cell has ended the line.
                let end = text.text.trim_end_matches('\n').len();
                text.text.truncate(end);
                text.push("\t");
            }
            XmlEvent::End("tr" | "table-row", _) => text.end_line(),
            XmlEvent::Text(piece) if text_depth > 0 && deleted_depth == 0 => text.push(piece),
            _ => {}
        }
        !text.is_full()
    })
}

/// Adds the cells of a sheet: a line per row, with tabs between the values.
fn add_rows(xml: &str, shared: &[String], text: &mut LimitedText) -> Result<(), String> {
    let (mut value, mut is_value, mut is_shared) = (String::new(), false, false);
    read_xml(xml, |event| {
        match event {
            XmlEvent::Start("c", _) => is_shared = false,
            XmlEvent::SharedCell => is_shared = true,
            XmlEvent::Start("v" | "t", _) => is_value = true,
            XmlEvent::End("v" | "t", _) => is_value = false,
            XmlEvent::Text(piece) if is_value => value.push_str(piece),
            XmlEvent::End("c", _) => {
                let index = value.trim().parse::<usize>().ok().filter(|_| is_shared);
                let shown = index.and_then(|index| shared.get(index));
                text.push(shown.unwrap_or(&value));
                text.push("\t");
                value.clear();
            }
            XmlEvent::End("row", _) => text.end_line(),
            _ => {}
        }
        !text.is_full()
    })
}

/// A part of an XML text. Elements have their name without prefix, and whether their
/// prefix is one of `OpenDocument`.
#[derive(Clone, Copy, Debug)]
enum XmlEvent<'a> {
    Start(&'a str, bool),
    End(&'a str, bool),
    /// The last started element is a cell whose value is the number of a shared text.
    SharedCell,
    Text(&'a str),
}

/// Calls `handle` with the parts of an XML text until it returns `false`.
fn read_xml(xml: &str, mut handle: impl FnMut(XmlEvent<'_>) -> bool) -> Result<(), String> {
    let mut reader = Reader::from_str(xml);
    loop {
        let event = reader.read_event();
        let goes_on = match event.map_err(|error| format!("damaged document: {error}"))? {
            Event::Start(element) => {
                let name = ElementName::new(element.name().0);
                let mut goes_on = handle(XmlEvent::Start(name.local, name.is_open_document));
                if name.local == "c" && has_shared_value(&element) {
                    goes_on = handle(XmlEvent::SharedCell);
                }
                goes_on
            }
            Event::Empty(element) => {
                let name = ElementName::new(element.name().0);
                handle(XmlEvent::Start(name.local, name.is_open_document))
                    && handle(XmlEvent::End(name.local, name.is_open_document))
            }
            Event::End(element) => {
                let name = ElementName::new(element.name().0);
                handle(XmlEvent::End(name.local, name.is_open_document))
            }
            Event::Text(text) => handle(XmlEvent::Text(&text.xml10_content())),
            Event::CData(text) => handle(XmlEvent::Text(&text.xml10_content())),
            Event::GeneralRef(reference) => {
                let name = format!("&{};", reference.xml10_content());
                // Only predefined entities and character references have a value.
                match quick_xml::escape::unescape(&name) {
                    Ok(text) => handle(XmlEvent::Text(&text)),
                    Err(_) => true,
                }
            }
            Event::Eof => return Ok(()),
            _ => true,
        };
        if !goes_on {
            return Ok(());
        }
    }
}

/// The name of an XML element.
struct ElementName<'a> {
    local: &'a str,
    is_open_document: bool,
}

impl<'a> ElementName<'a> {
    fn new(name: &'a str) -> Self {
        let (prefix, local) = name.split_once(':').unwrap_or(("", name));
        Self {
            local,
            is_open_document: matches!(prefix, "text" | "table" | "office"),
        }
    }
}

/// Returns whether a cell contains the number of a shared text.
fn has_shared_value(cell: &quick_xml::events::BytesStart<'_>) -> bool {
    let mut attributes = cell.attributes().flatten();
    attributes.any(|attribute| attribute.key.as_ref() == "t" && attribute.value.as_ref() == "s")
}
