//! Time and allocations of loading settings and of redacting text.

#[path = "../tests/it/sample.rs"]
mod sample;

use std::path::Path;

use bub_settings::{Environment, Loader, Redactor, Secret, WorkspaceTrust};

#[global_allocator]
static ALLOC: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

/// Returns about as many variables as a desktop session has.
fn environment() -> Environment {
    let other = (0..60).map(|n| (format!("VARIABLE_{n}"), format!("value {n}")));
    let own = [
        ("HOME".to_owned(), "/nonexistent".to_owned()),
        ("BUB_MODEL".to_owned(), "a:b".to_owned()),
    ];
    Environment::from_pairs(other.chain(own))
}

#[divan::bench]
fn load_without_files(bencher: divan::Bencher<'_, '_>) {
    bencher.with_inputs(environment).bench_values(|env| {
        let directory = Path::new("/nonexistent");
        let trust = WorkspaceTrust::new(&env, Some(directory));
        let report = trust.inspect(directory);
        Loader::new(env)
            .workspace(trust, report)
            .sections(sample::sections())
            .load()
    });
}

#[divan::bench]
fn read_the_process_environment() -> Environment {
    Environment::from_process()
}

#[divan::bench]
fn get_a_number(bencher: divan::Bencher<'_, '_>) {
    let settings = Loader::new(environment())
        .sections(sample::sections())
        .load()
        .ok();
    bencher.bench_local(|| {
        settings
            .as_ref()
            .map(|settings| settings.get(&sample::MAX_TOKENS))
    });
}

#[divan::bench]
fn redact_a_clean_line(bencher: divan::Bencher<'_, '_>) {
    let redactor = Redactor::new();
    for n in 0..10 {
        redactor.register(&Secret::from(format!("a secret number {n}")));
    }
    let line = "2026-01-01T00:00:00Z INFO turn{session=cli:local}: model call finished tokens=812"
        .repeat(2);
    bencher
        .counter(divan::counter::BytesCount::of_str(&line))
        .bench_local(|| redactor.redact(&line).len());
}

/// Returns a redactor that knows ten API keys, and 64 KiB of prose without them.
fn prose() -> (Redactor, String) {
    let redactor = Redactor::new();
    for n in 0..10 {
        let key = format!("{n}Xq7-Lm2vB9tRw4Yc8Zk1Pd6Hs3Jf5Ng0{n}");
        redactor.register(&Secret::from(key));
    }
    let line = "The quick brown fox (fox-1.2) reads `src/lib.rs:42` at 10:30, then says: done.\n";
    (redactor, line.repeat(64 * 1024 / line.len()))
}

#[divan::bench]
fn redact_a_long_clean_text(bencher: divan::Bencher<'_, '_>) {
    let (redactor, text) = prose();
    bencher
        .counter(divan::counter::BytesCount::of_str(&text))
        .bench_local(|| redactor.redact(&text).len());
}

#[divan::bench]
fn redact_a_long_text_with_secrets(bencher: divan::Bencher<'_, '_>) {
    let (redactor, text) = prose();
    let text = text.replace("fox-1.2", "3Xq7-Lm2vB9tRw4Yc8Zk1Pd6Hs3Jf5Ng03");
    bencher
        .counter(divan::counter::BytesCount::of_str(&text))
        .bench_local(|| redactor.redact(&text).len());
}

#[divan::bench]
fn build_a_matcher(bencher: divan::Bencher<'_, '_>) {
    bencher
        .with_inputs(|| prose().0)
        .bench_values(|redactor| redactor.redact("x").len());
}

#[divan::bench]
fn write_a_long_clean_text_in_small_pieces(bencher: divan::Bencher<'_, '_>) {
    use std::io::Write as _;
    let (redactor, text) = prose();
    bencher
        .counter(divan::counter::BytesCount::of_str(&text))
        .bench_local(|| {
            let mut out = Vec::with_capacity(text.len());
            let mut writer = redactor.writer(&mut out);
            for piece in text.as_bytes().chunks(5) {
                let _ = writer.write_all(piece);
            }
            drop(writer);
            out.len()
        });
}
