//! The languages that are highlighted. A language is one row; it needs no code.

/// The comments, strings and keywords of a language. All words are separated by spaces.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Language {
    /// Names in info strings, in lower case.
    pub(super) names: &'static str,
    /// Marks that start a comment up to the end of the line.
    pub(super) line_comments: &'static str,
    /// Strings and comments with an end. They come before `line_comments`, and the first one that matches counts.
    pub(super) quotes: &'static [Quote],
    pub(super) keywords: &'static str,
    /// Whether keywords may be in upper case.
    pub(super) ignores_case: bool,
}

/// A string, or a comment with an end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    pub(super) kind: QuoteKind,
    /// Where a quote that is not closed ends.
    pub(super) end: QuoteEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuoteKind {
    Comment,
    /// A string in which a backslash takes away the meaning of the next character.
    Escaped,
    Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuoteEnd {
    /// After one character or escape sequence; otherwise it is no quote.
    OneChar,
    SameLine,
    /// Only at its closing mark.
    AnyLine,
}

const fn quote(open: &'static str, close: &'static str, kind: QuoteKind, end: QuoteEnd) -> Quote {
    Quote {
        open,
        close,
        kind,
        end,
    }
}

const BLOCK_COMMENT: Quote = quote("/*", "*/", QuoteKind::Comment, QuoteEnd::AnyLine);
const TAG_COMMENT: Quote = quote("<!--", "-->", QuoteKind::Comment, QuoteEnd::AnyLine);
const LUA_COMMENT: Quote = quote("--[[", "]]", QuoteKind::Comment, QuoteEnd::AnyLine);
const DOUBLE: Quote = quote("\"", "\"", QuoteKind::Escaped, QuoteEnd::SameLine);
const LONG_DOUBLE: Quote = quote("\"", "\"", QuoteKind::Escaped, QuoteEnd::AnyLine);
const TRIPLE_DOUBLE: Quote = quote("\"\"\"", "\"\"\"", QuoteKind::Escaped, QuoteEnd::AnyLine);
const SINGLE: Quote = quote("'", "'", QuoteKind::Escaped, QuoteEnd::SameLine);
const RAW_SINGLE: Quote = quote("'", "'", QuoteKind::Raw, QuoteEnd::SameLine);
const TRIPLE_SINGLE: Quote = quote("'''", "'''", QuoteKind::Escaped, QuoteEnd::AnyLine);
const CHARACTER: Quote = quote("'", "'", QuoteKind::Escaped, QuoteEnd::OneChar);
const BACKTICK: Quote = quote("`", "`", QuoteKind::Escaped, QuoteEnd::AnyLine);
const RAW_BACKTICK: Quote = quote("`", "`", QuoteKind::Raw, QuoteEnd::AnyLine);
const RAW_RUST: Quote = quote("r#\"", "\"#", QuoteKind::Raw, QuoteEnd::AnyLine);

/// A language without comments, strings and keywords, for the rows below.
const EMPTY: Language = Language {
    names: "",
    line_comments: "",
    quotes: &[],
    keywords: "",
    ignores_case: false,
};

pub(super) const LANGUAGES: &[Language] = &[
    Language {
        names: "rust rs",
        line_comments: "//",
        quotes: &[BLOCK_COMMENT, RAW_RUST, LONG_DOUBLE, CHARACTER],
        keywords: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop \
                   match mod move mut pub ref return self Self static struct super trait true type unsafe use where \
                   while",
        ..EMPTY
    },
    Language {
        names: "python py python3 pycon",
        line_comments: "#",
        quotes: &[TRIPLE_DOUBLE, TRIPLE_SINGLE, DOUBLE, SINGLE],
        keywords: "False None True and as assert async await break case class continue def del elif else except \
                   finally for from global if import in is lambda match nonlocal not or pass raise return self try \
                   while with yield",
        ..EMPTY
    },
    Language {
        names: "javascript js jsx mjs typescript ts tsx",
        line_comments: "//",
        quotes: &[BLOCK_COMMENT, BACKTICK, DOUBLE, SINGLE],
        keywords: "any as async await boolean break case catch class const continue default delete do else enum export \
                   extends false finally for from function if implements import in instanceof interface let new null \
                   number of private public readonly return static string super switch this throw true try type \
                   typeof undefined var void while yield",
        ..EMPTY
    },
    Language {
        names: "go golang",
        line_comments: "//",
        quotes: &[BLOCK_COMMENT, RAW_BACKTICK, DOUBLE, CHARACTER],
        keywords: "any bool break byte case chan const continue default defer else error false for func go if import \
                   int interface iota map nil package range return rune select string struct switch true type var",
        ..EMPTY
    },
    Language {
        names: "c h cpp c++ cc hpp java kotlin kt scala csharp cs c# swift php dart",
        line_comments: "//",
        quotes: &[BLOCK_COMMENT, TRIPLE_DOUBLE, DOUBLE, SINGLE],
        keywords: "abstract as auto bool boolean break case catch char class const constexpr continue default delete do \
                   double else enum extends extern false final finally float for foreach fun func function if \
                   implements import in inline int interface internal let long namespace new nil null nullptr override \
                   package private protected public return short signed sizeof static struct super switch template \
                   this throw throws true try typedef typename union unsigned using val var virtual void when while",
        ..EMPTY
    },
    Language {
        names: "ruby rb",
        line_comments: "#",
        quotes: &[DOUBLE, SINGLE],
        keywords: "and begin break case class def do else elsif end ensure false for if in module next nil not or raise \
                   rescue retry return self super then true unless until when while yield",
        ..EMPTY
    },
    Language {
        names: "bash sh shell zsh console dockerfile make makefile",
        line_comments: "#",
        quotes: &[DOUBLE, RAW_SINGLE],
        keywords: "case cd do done echo elif else esac exit export fi for function if in local return set then until \
                   while FROM RUN COPY CMD ENV ENTRYPOINT WORKDIR",
        ..EMPTY
    },
    Language {
        names: "sql postgres postgresql mysql sqlite",
        line_comments: "--",
        quotes: &[BLOCK_COMMENT, DOUBLE, RAW_SINGLE],
        keywords: "add alter and as asc begin between by case commit create default delete desc distinct drop else end \
                   exists from group having in index inner insert into is join key left like limit not null offset on \
                   or order primary references returning select set table then union update using values view when \
                   where with",
        ignores_case: true,
    },
    Language {
        names: "lua",
        line_comments: "--",
        quotes: &[LUA_COMMENT, DOUBLE, SINGLE],
        keywords: "and do else elseif end false for function if in local nil not or repeat return then true until while",
        ..EMPTY
    },
    Language {
        names: "json jsonc json5 jsonl css scss",
        line_comments: "//",
        quotes: &[BLOCK_COMMENT, DOUBLE],
        keywords: "false null true",
        ..EMPTY
    },
    Language {
        names: "yaml yml toml ini conf env dotenv properties",
        line_comments: "#",
        quotes: &[TRIPLE_DOUBLE, DOUBLE],
        keywords: "false null true",
        ..EMPTY
    },
    Language {
        names: "html xml svg vue",
        quotes: &[TAG_COMMENT, DOUBLE],
        ..EMPTY
    },
];
