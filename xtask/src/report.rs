//! Formats the figures as tables, for a terminal and for `docs/performance.md`.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    TaskResult,
    baseline::{self, Baseline},
    divan::Measurement,
    root,
};

const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- end of figures -->";

pub(crate) fn tables(
    machine: &[(&'static str, String)],
    is_quick: bool,
    baselines: &[Baseline],
    figures: &[Measurement],
) -> String {
    let facts: Vec<String> = machine
        .iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    let mut text = format!("Measured on: {}.", facts.join("; "));
    if is_quick {
        text += " A short run (`--quick`): the figures are rough.";
    }
    text += "\n\n| Baseline | Operation | Best time |\n|---|---|---|\n";
    for one in baselines {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            one.name,
            one.about,
            nanos(one.nanos)
        );
    }
    let (grown, single) = partition(figures);
    text += "\n### Single values\n";
    let mut bench = "";
    for figure in single {
        if bench != figure.bench {
            bench = &figure.bench;
            let _ = write!(
                text,
                "\n| {bench} | Best value | Per item | Allocations | Peak allocation | Relative to baseline |\n|---|---|---|---|---|---|\n"
            );
        }
        let ratio =
            ratio(figure, baselines).map(|(name, ratio)| format!("{} × {name}", short(ratio)));
        let cells = [
            Some(value(figure)),
            figure.per_item.map(nanos),
            figure.allocations.map(short),
            figure.peak.map(bytes),
            ratio,
        ];
        let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
        let _ = writeln!(
            text,
            "| {} | {} |",
            figure.name.replace('|', "\\|"),
            cells.join(" | ")
        );
    }
    text += "\n### Growth\n\nIf a benchmark counts items, the time is per item.\n";
    let mut shown = BTreeSet::new();
    for figure in &grown {
        let sizes = sizes_of(&grown, figure);
        if !shown.insert((&figure.bench, sizes.clone())) {
            continue;
        }
        let heads: Vec<String> = sizes.iter().map(|size| thousands(*size)).collect();
        let _ = write!(
            text,
            "\n| {} | {} |\n|---|{}\n",
            figure.bench,
            heads.join(" | "),
            "---|".repeat(heads.len())
        );
        let mut names = Vec::new();
        for other in grown.iter().filter(|other| other.bench == figure.bench) {
            let name = other.size().map_or("", |(name, _)| name);
            if names.contains(&name) || sizes_of(&grown, other) != sizes {
                continue;
            }
            names.push(name);
            let cells: Vec<String> = series(&grown, other).map(|(_, one)| growing(one)).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
    }
    text
}

/// Returns a time relative to its baseline.
pub(crate) fn ratio(figure: &Measurement, baselines: &[Baseline]) -> Option<(&'static str, f64)> {
    let name = baseline::name_for(&figure.bench, &figure.name);
    let found = baselines.iter().find(|one| one.name == name)?;
    Some((name, figure.nanos()? / found.nanos))
}

/// Separates figures that were measured at three sizes or more from the others.
fn partition(figures: &[Measurement]) -> (Vec<&Measurement>, Vec<&Measurement>) {
    let all: Vec<&Measurement> = figures.iter().collect();
    all.iter()
        .partition(|figure| sizes_of(&all, figure).len() >= 3)
}

fn series<'a>(
    figures: &'a [&Measurement],
    like: &'a Measurement,
) -> impl Iterator<Item = (u64, &'a Measurement)> {
    let name = like.size().map(|(name, _)| name);
    let same = figures.iter().filter(move |one| one.bench == like.bench);
    same.filter_map(move |one| {
        let (own, size) = one.size()?;
        (Some(own) == name).then_some((size, *one))
    })
}

fn sizes_of(figures: &[&Measurement], like: &Measurement) -> Vec<u64> {
    series(figures, like).map(|(size, _)| size).collect()
}

fn growing(figure: &Measurement) -> String {
    let mut text = figure.per_item.map_or_else(|| value(figure), nanos);
    if let Some(peak) = figure.peak {
        let _ = write!(text, ", {}", bytes(peak));
    }
    text
}

fn value(figure: &Measurement) -> String {
    match (figure.nanos(), figure.unit.as_str()) {
        (Some(time), _) => nanos(time),
        (None, "bytes") => bytes(figure.value),
        (None, unit) => format!("{} {unit}", short(figure.value)),
    }
}

fn nanos(time: f64) -> String {
    match time {
        ..1e3 => format!("{} ns", short(time)),
        ..1e6 => format!("{} µs", short(time / 1e3)),
        ..1e9 => format!("{} ms", short(time / 1e6)),
        _ => format!("{} s", short(time / 1e9)),
    }
}

fn bytes(count: f64) -> String {
    match count {
        ..1e3 => format!("{} B", short(count)),
        ..1e6 => format!("{} kB", short(count / 1e3)),
        _ => format!("{} MB", short(count / 1e6)),
    }
}

/// Formats a number with three significant digits; larger numbers in full.
fn short(number: f64) -> String {
    match number.abs() {
        ..0.1 if number != 0.0 => format!("{number:.3}"),
        ..10.0 if number.fract() != 0.0 => format!("{number:.2}"),
        ..100.0 if number.fract() != 0.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes the tables between the markers of the page.
pub(crate) fn write_docs(tables: &str) -> TaskResult<()> {
    let path = root().join("docs/performance.md");
    let page = std::fs::read_to_string(&path)?;
    let (before, rest) = page
        .split_once(BEGIN)
        .ok_or("docs/performance.md has no marker for figures")?;
    let (_, after) = rest
        .split_once(END)
        .ok_or("docs/performance.md has no marker for their end")?;
    std::fs::write(&path, format!("{before}{BEGIN}\n{tables}\n{END}{after}"))?;
    eprintln!("written: {}", path.display());
    Ok(())
}
