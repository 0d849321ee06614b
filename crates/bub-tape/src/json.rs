//! A lenient JSON parser for text that strict parsers reject.
//!
//! Python writes `NaN` and `Infinity`, and model output may contain lone surrogates such as `\ud800`. JSON values
//! cannot represent either. The parser reads the former as `null` and the latter as U+FFFD, because losing one
//! character is better than losing the entry.

use serde_json::{Map, Number, Value};

/// Maximum nesting depth. Deeper documents are rejected because they could overflow the stack.
const MAX_DEPTH: usize = 1_000;

/// Parses JSON leniently: `NaN` and infinities become `null`, lone surrogates become U+FFFD.
///
/// Returns `None` if the text is not JSON even with these exceptions.
///
/// ```
/// let value = bub_tape::parse_json_lossy(r#"{"score": NaN}"#);
/// assert_eq!(value, Some(serde_json::json!({"score": null})));
/// ```
pub fn parse_json_lossy(text: &str) -> Option<Value> {
    serde_json::from_str(text)
        .ok()
        .or_else(|| parse_json_lenient(text))
}

/// Parses JSON with the lenient parser, without trying the strict parser first.
pub(crate) fn parse_json_lenient(text: &str) -> Option<Value> {
    let mut parser = Parser { text, offset: 0 };
    let value = parser.parse_value(0)?;
    parser.skip_space();
    (parser.offset == text.len()).then_some(value)
}

struct Parser<'a> {
    text: &'a str,
    offset: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.offset += 1;
        }
    }

    /// Skips whitespace and consumes `byte`, if it comes next.
    fn consume(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.peek()? == byte).then(|| self.offset += 1)
    }

    fn parse_literal(&mut self, word: &str, value: Value) -> Option<Value> {
        self.text
            .get(self.offset..)?
            .starts_with(word)
            .then(|| self.offset += word.len())?;
        Some(value)
    }

    fn parse_value(&mut self, depth: usize) -> Option<Value> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.skip_space();
        match self.peek()? {
            b'{' => self.parse_object(depth),
            b'[' => self.parse_array(depth),
            b'"' => self.parse_string().map(Value::String),
            b't' => self.parse_literal("true", Value::Bool(true)),
            b'f' => self.parse_literal("false", Value::Bool(false)),
            b'n' => self.parse_literal("null", Value::Null),
            b'N' => self.parse_literal("NaN", Value::Null),
            b'I' => self.parse_literal("Infinity", Value::Null),
            _ => self.parse_number(),
        }
    }

    fn parse_object(&mut self, depth: usize) -> Option<Value> {
        self.consume(b'{')?;
        let mut map = Map::new();
        if self.consume(b'}').is_some() {
            return Some(Value::Object(map));
        }
        loop {
            self.skip_space();
            let key = self.parse_string()?;
            self.consume(b':')?;
            map.insert(key, self.parse_value(depth + 1)?);
            if self.consume(b',').is_none() {
                self.consume(b'}')?;
                return Some(Value::Object(map));
            }
        }
    }

    fn parse_array(&mut self, depth: usize) -> Option<Value> {
        self.consume(b'[')?;
        let mut items = Vec::new();
        if self.consume(b']').is_some() {
            return Some(Value::Array(items));
        }
        loop {
            items.push(self.parse_value(depth + 1)?);
            if self.consume(b',').is_none() {
                self.consume(b']')?;
                return Some(Value::Array(items));
            }
        }
    }

    fn parse_number(&mut self) -> Option<Value> {
        if let Some(value) = self.parse_literal("-Infinity", Value::Null) {
            return Some(value);
        }
        let rest = self.text.get(self.offset..)?;
        let length = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .count();
        let digits = rest.get(..length)?;
        self.offset += length;
        if let Ok(number) = serde_json::from_str::<Number>(digits) {
            return Some(Value::Number(number));
        }
        // Well-formed but too large for a double, such as 1e999. Python reads it as infinity.
        is_number(digits).then_some(Value::Null)
    }

    fn parse_string(&mut self) -> Option<String> {
        self.consume(b'"')?;
        let mut out = String::new();
        loop {
            let rest = self.text.get(self.offset..)?;
            let plain = rest
                .bytes()
                .take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f))
                .count();
            out.push_str(rest.get(..plain)?);
            self.offset += plain;
            match self.peek()? {
                b'"' => {
                    self.offset += 1;
                    return Some(out);
                }
                b'\\' => self.parse_escape(&mut out)?,
                _ => return None,
            }
        }
    }

    fn parse_escape(&mut self, out: &mut String) -> Option<()> {
        self.offset += 1;
        let letter = self.peek()?;
        self.offset += 1;
        let character = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.parse_unicode_escape()?,
            _ => return None,
        };
        out.push(character);
        Some(())
    }

    fn parse_unicode_escape(&mut self) -> Option<char> {
        let high = self.parse_hex4()?;
        if !(0xd800..0xdc00).contains(&high) {
            return Some(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let before = self.offset;
        let paired = self.text.get(self.offset..)?.starts_with("\\u");
        if paired {
            self.offset += 2;
            let low = self.parse_hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                return char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
            }
            // Not a low surrogate: parse this escape again on its own.
            self.offset = before;
        }
        Some(char::REPLACEMENT_CHARACTER)
    }

    fn parse_hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.offset..self.offset + 4)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then_some(())?;
        self.offset += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}

/// Returns whether the text is a valid JSON number of any magnitude.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole)
        && (whole.len() == 1 || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|part| digits(part.strip_prefix(['+', '-']).unwrap_or(part)))
}
