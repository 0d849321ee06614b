//! Tests of redaction.

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn knowing(secrets: &[&str]) -> Redactor {
    let redactor = Redactor::new();
    for secret in secrets {
        redactor.register(&Secret::from(*secret));
    }
    redactor
}

/// Writes `text` in chunks, cycling through the given sizes.
fn written(redactor: &Redactor, text: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = redactor.writer(&mut out);
    let (mut rest, mut sizes) = (text, sizes.iter().cycle());
    while !rest.is_empty() {
        let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
        let (piece, tail) = rest.split_at(size);
        writer.write_all(piece).unwrap();
        writer.flush().unwrap();
        rest = tail;
    }
    drop(writer);
    out
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

// W-35: encoders break lines; no useful part of a long key is left on any of them.
#[test]
fn a_secret_that_is_broken_into_lines_is_masked() {
    let secret: String = ('!'..='~')
        .filter(char::is_ascii_alphanumeric)
        .chain("-_correct-horse-battery".chars())
        .collect();
    let redactor = knowing(&[&secret]);
    let hex: String = secret
        .bytes()
        .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    for (form, spelled) in [
        ("base64", &base64(&format!("user:{secret}\n"))),
        ("hex", &hex),
    ] {
        for width in [60, 64, 76] {
            let lines: Vec<&str> = spelled
                .as_bytes()
                .chunks(width)
                .map(|line| std::str::from_utf8(line).unwrap())
                .collect();
            let shown = redactor.redact(&lines.join("\n")).into_owned();
            let longest = shown.split(['\n', '*']).map(str::len).max().unwrap();
            assert!(longest < 32, "{form}, {width} columns: {shown}");
        }
    }
}

fn base64(text: &str) -> String {
    let bits = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - bytes.len()))
    };
    let alphabet: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(['+', '/'])
        .collect();
    text.as_bytes()
        .chunks(3)
        .flat_map(|group| {
            (0..4)
                .map(|sextet| alphabet[(bits(group) >> (18 - 6 * sextet) & 63) as usize])
                .collect::<Vec<_>>()
        })
        .collect()
}

// W-35
#[test]
fn every_spelling_of_a_secret_is_masked() {
    let secret = "p\"ä/ss w+rd=?";
    let redactor = knowing(&[secret]);
    for spelling in [
        "p\"ä/ss w+rd=?",
        "p%22%C3%A4%2Fss%20w%2Brd%3D%3F",
        "p%22%c3%a4%2fss%20w%2brd%3d%3f",
        "p%22%C3%A4%2Fss+w%2Brd%3D%3F",
        "p%22%C3%A4/ss%20w%2Brd%3D%3F",
        "p\\\"ä/ss w+rd=?",
        "p\\\\\\\"ä/ss w+rd=?",
        "p\\\"\\u00e4/ss w+rd=?",
        "p\\\"ä\\/ss w+rd=?",
        "cCLDpC9zcyB3K3JkPT8",
        "7022c3a42f737320772b72643d3f",
        "70 22 c3 a4 2f 73 73 20 77 2b 72 64 3d 3f",
        "70:22:C3:A4:2F:73:73:20:77:2B:72:64:3D:3F",
        "\\x70\\x22\\xc3\\xa4\\x2f\\x73\\x73\\x20\\x77\\x2b\\x72\\x64\\x3d\\x3f",
        "%70%22%c3%a4%2f%73%73%20%77%2b%72%64%3d%3f",
    ] {
        assert_eq!(
            redactor.redact(&format!("a {spelling} b")),
            "a *** b",
            "{spelling}"
        );
    }
    assert_eq!(redactor.redact(&format!("{:?}", [secret])), "[\"***\"]");
}

// W-35: `Authorization: Basic` holds the base64 of `user:secret`
#[test]
fn a_secret_inside_longer_base64_is_masked_at_every_alignment() {
    let redactor = knowing(&["hunter2hunter2"]);
    // base64 of "hunter2hunter2", "a:hunter2hunter2", "ab:hunter2hunter2", "ab:hunter2hunter2!"
    for text in [
        "aHVudGVyMmh1bnRlcjI=",
        "YTpodW50ZXIyaHVudGVyMg==",
        "YWI6aHVudGVyMmh1bnRlcjI=",
        "YWI6aHVudGVyMmh1bnRlcjIh",
    ] {
        let clean = redactor.redact(text);
        assert!(
            clean.contains(MASK) && clean.len() < 15,
            "{text} -> {clean}"
        );
    }
}

#[test]
fn short_values_are_left_alone() {
    let redactor = knowing(&["12345", "", "     ", "true"]);
    let text = "12345 true";
    assert!(matches!(redactor.redact(text), Cow::Borrowed(same) if same == text));
    assert_eq!(knowing(&["123456"]).redact("x123456x"), "x***x");
    // A value of one character is no secret, also as a line of a longer one.
    let redactor = knowing(&["aaaaaaaaaa", "  ------  \n", "äääääää", "======\nswordfish"]);
    let text = "aaaaaaaaaa ------ äääääää ======";
    assert_eq!(redactor.redact(text), text);
    assert_eq!(redactor.redact("swordfish"), MASK);
}

#[test]
fn overlapping_secrets_leave_no_rest() {
    let redactor = knowing(&["abcdefgh", "efghijkl", "abcdef"]);
    assert_eq!(redactor.redact("<abcdefghijkl>"), "<***>");
    assert_eq!(redactor.redact("abcdefabcdef"), "******");
}

// W-35
#[test]
fn well_known_tokens_are_masked_without_being_registered() {
    let redactor = Redactor::new();
    for (text, clean) in [
        ("'api_key': 'sk-SECRET123'", "'api_key': '***'"),
        ("key=sk-ant-api03-abcdefgh_IJKL-9", "key=***"),
        ("ghp_0123456789abcdefghij0123456789abcdef", "***"),
        ("github_pat_11ABCDEFG0abcdefghijkl", "***"),
        ("token xoxb-123456789012-abcdef", "token ***"),
        (
            "Authorization: Bearer abc.DEF-123",
            "Authorization: Bearer ***",
        ),
        (
            "authorization: bearer abcdef123456",
            "authorization: bearer ***",
        ),
        (
            "https://api.telegram.org/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/getMe",
            "https://api.telegram.org/bot***/getMe",
        ),
        ("123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11", "***"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "***"),
    ] {
        assert_eq!(redactor.redact(text), clean);
    }
}

#[test]
fn prose_that_looks_a_little_like_a_token_is_left_alone() {
    let redactor = Redactor::new();
    for text in [
        "the task-force-2024-report",
        "sk-learn-contrib",
        "bearer token missing",
        "Bearer authentication",
        "at 12:30:45, 1700000000:done",
        "session cli:local",
        "risk-0123456789",
        "hf_home",
    ] {
        assert_eq!(redactor.redact(text), text);
    }
}

#[test]
fn a_secret_registered_later_is_known_to_every_clone_and_thread() {
    let redactor = Redactor::new();
    assert_eq!(redactor.clone().redact("swordfish"), "swordfish");
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let redactor = redactor.clone();
            thread::spawn(move || {
                let secret = format!("swordfish-{n}");
                redactor.register(&Secret::from(secret.as_str()));
                redactor.redact(&secret).into_owned()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), MASK);
    }
    assert_eq!(redactor.redact("swordfish-0 swordfish-3"), "*** ***");
}

#[test]
fn a_secret_of_several_lines_is_masked_in_line_wise_output() {
    let redactor = knowing(&["-----BEGIN KEY-----\nabc\n-----END KEY-----\n", "ab\ncdef"]);
    let text = "x -----BEGIN KEY-----\nabc\n-----END KEY-----\n y\nab\ncdef\n";
    for size in 1..20 {
        let out = written(&redactor, text.as_bytes(), &[size]);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            redactor.redact(text),
            "pieces of {size}"
        );
    }
}

#[test]
fn a_line_without_end_stays_bounded_and_secrets_in_it_masked() {
    let redactor = knowing(&["swordfish"]);
    let text = "x".repeat(1000) + "swordfish";
    let out = written(&redactor, text.repeat(300).as_bytes(), &[977]);
    assert_eq!(out, (("x".repeat(1000) + MASK).repeat(300)).into_bytes());
    let endless = format!("sk-{}", "a1".repeat(100_000));
    assert!(written(&redactor, endless.as_bytes(), &[4096]).len() < endless.len());
}

#[test]
fn text_appears_when_it_can_be_no_secret_and_the_rest_on_drop() {
    let redactor = knowing(&["swordfish"]);
    let out = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut writer = redactor.writer(SharedBuffer(out.clone()));
    writer.write_all(b"one sword").unwrap();
    assert_eq!(*out.lock().unwrap(), b"one ");
    writer.write_all(b"fish\ntwo s").unwrap();
    assert_eq!(*out.lock().unwrap(), b"one ***\ntwo ");
    drop(writer);
    assert_eq!(*out.lock().unwrap(), b"one ***\ntwo s");
}

#[test]
fn bytes_that_are_not_text_pass_through() {
    let redactor = knowing(&["swordfish"]);
    assert_eq!(
        written(&redactor, b"\xff\xfeswordfish\xff\n", &[1]),
        b"\xff\xfe***\xff\n"
    );
}

#[test]
fn a_token_that_arrives_in_pieces_is_masked() {
    let redactor = Redactor::new();
    let text = "key sk-proj-0123456789abc, Bearer abc.DEF-123, sk-learn-contrib, at 12:30, 1700000000:done, \
                bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/getMe, Bearer token, s";
    let expected = "key ***, Bearer ***, sk-learn-contrib, at 12:30, 1700000000:done, bot***/getMe, Bearer token, s";
    assert_eq!(redactor.redact(text), expected);
    for size in 1..40 {
        let out = written(&redactor, text.as_bytes(), &[size]);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            expected,
            "pieces of {size}"
        );
    }
}

#[test]
fn a_secret_registered_during_a_stream_is_masked_from_then_on() {
    let redactor = knowing(&["swordfish-1", "battery"]);
    let mut stream = redactor.stream();
    assert_eq!(stream.push_str("battery swordfish"), "*** ");
    redactor.register(&Secret::from("swordfish-2"));
    assert_eq!(stream.push_str("-2 battery "), "*** *** ");
}

/// Inputs for which a simple matcher needs quadratic time: secrets, and a text of `size` bytes.
fn adversarial_inputs(size: usize) -> Vec<(&'static str, Vec<String>, String)> {
    let periodic = |bytes: usize| "ab".repeat(bytes / 2);
    let nested = (1..=32).map(|n| "ab".repeat(3 + n * size / 1024));
    let common_prefix = (0..size / 256).map(|n| format!("{}{n:06}", periodic(200)));
    vec![
        ("one letter", vec!["a".repeat(size)], "a".repeat(size)),
        ("periodic", vec![periodic(size) + "c"], periodic(size)),
        ("nested", nested.collect(), periodic(size)),
        ("common prefix", common_prefix.collect(), periodic(size)),
        (
            "overlapping encodings",
            vec!["%25".repeat(size / 64)],
            "%2525".repeat(size / 5),
        ),
        (
            "an endless token",
            Vec::new(),
            format!("sk-{}", "a1".repeat(size / 2)),
        ),
        ("digits", Vec::new(), "1".repeat(size)),
    ]
}

/// Redacts a text byte by byte and as a whole. Returns the number of nodes visited, with those of
/// building the automaton, and the number of bytes of all patterns and of the text.
fn count_work(secrets: &[String], text: &str) -> (usize, usize) {
    let redactor = Redactor::new();
    for secret in secrets {
        redactor.register(&Secret::from(secret.as_str()));
    }
    automaton::STEPS.set(0);
    let whole = redactor.redact(text).into_owned();
    assert_eq!(written(&redactor, text.as_bytes(), &[1]).len(), whole.len());
    let patterns: usize = redactor.state.read().patterns.iter().map(Vec::len).sum();
    (automaton::STEPS.get(), patterns + 2 * text.len())
}

// A value of 16,000 equal letters stopped the program.
#[test]
fn the_work_is_linear_for_every_input() {
    for (name, secrets, text) in adversarial_inputs(4 * 1024) {
        let (steps, bytes) = count_work(&secrets, &text);
        assert!(
            steps <= 3 * bytes,
            "{name}: {steps} steps for {bytes} bytes"
        );
    }
}

/// Returns the time that this thread has run, which other programs change little.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

// The count above does not see the cost of holding text back.
#[test]
fn four_times_the_input_needs_about_four_times_the_time() {
    let time = |size: usize, index: usize| {
        let (_, secrets, text) = adversarial_inputs(size).swap_remove(index);
        let run = |_| {
            let start = cpu_time();
            count_work(&secrets, &text);
            cpu_time().checked_sub(start).unwrap()
        };
        (0..3).map(run).min().unwrap()
    };
    for (index, (name, ..)) in adversarial_inputs(64).into_iter().enumerate() {
        let (small, large) = (time(2 * 1024, index), time(8 * 1024, index));
        // Quadratic work needs 16 times the time.
        assert!(large < 11 * small, "{name}: {small:?}, then {large:?}");
    }
}

struct SharedBuffer(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Generates text in which secrets are likely: a few letters with the secrets spliced in.
fn cases() -> impl Strategy<Value = (Vec<String>, String)> {
    let secrets = prop::collection::vec("[ab\n\" ]{6,12}", 1..4);
    (
        secrets,
        prop::collection::vec((any::<prop::sample::Index>(), "[ab\n\" x]{0,8}"), 0..8),
    )
        .prop_map(|(secrets, parts)| {
            let text = parts
                .iter()
                .flat_map(|(which, between)| [between.as_str(), which.get(&secrets).as_str()])
                .collect();
            (secrets, text)
        })
}

proptest! {
    // Each case builds its own matchers, which is slow without optimization.
    #![proptest_config(ProptestConfig::with_cases(96))]

    // W-35
    #[test]
    fn no_registered_secret_survives((secrets, text) in cases()) {
        let redactor = Redactor::new();
        let secrets: Vec<&String> = secrets.iter().filter(|secret| is_secret(secret)).collect();
        for secret in &secrets {
            redactor.register(&Secret::from(secret.as_str()));
        }
        let spellings = [text.clone(), text.escape_debug().to_string(), encodings::percent_encode(&text)];
        for spelling in spellings {
            let clean = redactor.redact(&spelling).into_owned();
            for secret in &secrets {
                prop_assert!(!clean.contains(secret.as_str()), "{secret:?} in {clean:?}");
                prop_assert!(!clean.contains(&encodings::percent_encode(secret)));
            }
        }
    }

    // W-35
    #[test]
    fn chunks_make_no_difference((secrets, text) in cases(), sizes in prop::collection::vec(1usize..12, 1..6)) {
        let redactor = Redactor::new();
        for secret in &secrets {
            redactor.register(&Secret::from(secret.as_str()));
        }
        let out = written(&redactor, text.as_bytes(), &sizes);
        prop_assert_eq!(String::from_utf8(out.clone()).unwrap(), redactor.redact(&text).into_owned());
        for secret in secrets.iter().filter(|secret| is_secret(secret)) {
            prop_assert!(!contains(&out, secret));
        }
    }

    // Nothing is lost or reordered, and no flush shows a whole secret.
    #[test]
    fn a_stream_shows_no_secret_however_it_is_split(
        (secrets, text) in cases(),
        pieces in prop::collection::vec((1usize..12, any::<bool>()), 1..9),
    ) {
        let redactor = Redactor::new();
        for secret in &secrets {
            redactor.register(&Secret::from(secret.as_str()));
        }
        let (mut plain, mut flushed) = (redactor.stream(), redactor.stream());
        let (mut shown, mut shown_with_flushes) = (String::new(), String::new());
        let (mut rest, mut pieces) = (text.as_str(), pieces.iter().cycle());
        while !rest.is_empty() {
            let (size, flush) = pieces.next().unwrap();
            let (piece, tail) = rest.split_at((*size).min(rest.len()));
            shown += &plain.push_str(piece);
            shown_with_flushes += &flushed.push_str(piece);
            if *flush {
                shown_with_flushes += &flushed.flush_str();
            }
            rest = tail;
        }
        shown += &plain.flush_str();
        shown_with_flushes += &flushed.flush_str();
        let redacted = redactor.redact(&text);
        prop_assert_eq!(&shown, &redacted);
        for secret in secrets.iter().filter(|secret| is_secret(secret)) {
            prop_assert!(!shown_with_flushes.contains(secret.as_str()), "{secret:?} in {shown_with_flushes:?}");
        }
        // A flush shows at most the beginning of a secret in addition.
        let mut letters = shown_with_flushes.chars();
        prop_assert!(redacted.chars().all(|c| letters.any(|other| other == c)), "{redacted:?} {shown_with_flushes:?}");
    }

    // The automaton, against a search for each secret.
    #[test]
    fn the_spans_are_those_of_a_simple_search((secrets, text) in cases()) {
        let patterns: BTreeSet<Vec<u8>> = secrets.iter().map(|secret| secret.clone().into_bytes()).collect();
        let mut scanner = Scanner::default();
        scanner.read(&Automaton::new(&patterns), text.as_bytes());
        let mut covered = vec![false; text.len()];
        for pattern in &patterns {
            for at in 0..text.len() {
                if text.as_bytes()[at..].starts_with(pattern) {
                    covered[at..at + pattern.len()].fill(true);
                }
            }
        }
        let mut found = vec![false; text.len()];
        scanner.spans.iter().for_each(|span| found[span.clone()].fill(true));
        prop_assert_eq!(found, covered);
    }

    #[test]
    fn any_text_is_redacted_without_a_panic(text in ".{0,80}", secret in ".{0,20}") {
        let redactor = knowing(&[&secret]);
        let clean = redactor.redact(&text);
        prop_assert!(!is_secret(&secret) || !clean.contains(&secret));
    }
}
