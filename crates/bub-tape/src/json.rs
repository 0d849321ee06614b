//! A forgiving JSON reader for what strict readers refuse.
//!
//! Python writes `NaN` and `Infinity`, and model output may contain lone surrogates such as `\ud800`.
//! Neither can be a JSON value, so the first become `null` and the second U+FFFD: losing one character
//! beats losing the entry.

use serde_json::{Map, Number, Value};

/// The nesting a document may have; deeper ones are refused instead of exhausting the stack.
const MAX_DEPTH: usize = 1_000;

/// Parses JSON text, replacing what JSON cannot express. `None` when it is not JSON even then.
pub fn parse_lossy(text: &str) -> Option<Value> {
    serde_json::from_str(text)
        .ok()
        .or_else(|| parse_lenient(text))
}

/// The forgiving path alone.
pub(crate) fn parse_lenient(text: &str) -> Option<Value> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.skip_space();
    (parser.at == text.len()).then_some(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn literal(&mut self, word: &str, value: Value) -> Option<Value> {
        self.text
            .get(self.at..)?
            .starts_with(word)
            .then(|| self.at += word.len())?;
        Some(value)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.skip_space();
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(Value::String),
            b't' => self.literal("true", Value::Bool(true)),
            b'f' => self.literal("false", Value::Bool(false)),
            b'n' => self.literal("null", Value::Null),
            b'N' => self.literal("NaN", Value::Null),
            b'I' => self.literal("Infinity", Value::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.eat(b'{')?;
        let mut map = Map::new();
        if self.eat(b'}').is_some() {
            return Some(Value::Object(map));
        }
        loop {
            self.skip_space();
            let key = self.string()?;
            self.eat(b':')?;
            map.insert(key, self.value(depth + 1)?);
            if self.eat(b',').is_none() {
                self.eat(b'}')?;
                return Some(Value::Object(map));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.eat(b'[')?;
        let mut items = Vec::new();
        if self.eat(b']').is_some() {
            return Some(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.eat(b',').is_none() {
                self.eat(b']')?;
                return Some(Value::Array(items));
            }
        }
    }

    fn number(&mut self) -> Option<Value> {
        if let Some(value) = self.literal("-Infinity", Value::Null) {
            return Some(value);
        }
        let rest = self.text.get(self.at..)?;
        let length = rest
            .bytes()
            .take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .count();
        let digits = rest.get(..length)?;
        self.at += length;
        if let Ok(number) = serde_json::from_str::<Number>(digits) {
            return Some(Value::Number(number));
        }
        // Well-formed but beyond a double, such as 1e999: Python reads infinity.
        is_number(digits).then_some(Value::Null)
    }

    fn string(&mut self) -> Option<String> {
        self.eat(b'"')?;
        let mut out = String::new();
        loop {
            let rest = self.text.get(self.at..)?;
            let plain = rest
                .bytes()
                .take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f))
                .count();
            out.push_str(rest.get(..plain)?);
            self.at += plain;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(out);
                }
                b'\\' => self.escape(&mut out)?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        self.at += 1;
        let letter = self.peek()?;
        self.at += 1;
        let character = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode()?,
            _ => return None,
        };
        out.push(character);
        Some(())
    }

    fn unicode(&mut self) -> Option<char> {
        let high = self.hex4()?;
        if !(0xd800..0xdc00).contains(&high) {
            return Some(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let before = self.at;
        let paired = self.text.get(self.at..)?.starts_with("\\u");
        if paired {
            self.at += 2;
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                return char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
            }
            // Not its partner: it stands for itself and is read again.
            self.at = before;
        }
        Some(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then_some(())?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}

/// Whether the text has the grammar of a JSON number, whatever its size.
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
