//! Formats the figures as tables, for a terminal and for `docs/performance.md`.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    TaskResult,
    baseline::{self, Baseline},
    divan::Measurement,
    repository_root,
};

const BEGIN: &str = "<!-- figures -->";
const END: &str = "<!-- end of figures -->";

pub(crate) fn format_tables(
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
    for baseline in baselines {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            baseline.name,
            baseline.about,
            format_nanos(baseline.nanos)
        );
    }
    let (grown, single) = split_growth(figures);
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
        let ratio = ratio(figure, baselines)
            .map(|(name, ratio)| format!("{} × {name}", format_number(ratio)));
        let cells = [
            Some(format_value(figure)),
            figure.per_item.map(format_nanos),
            figure.allocations.map(format_number),
            figure.peak.map(format_bytes),
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
        let heads: Vec<String> = sizes.iter().map(|size| format_thousands(*size)).collect();
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
            let cells: Vec<String> = same_series(&grown, other)
                .map(|(_, figure)| format_growth(figure))
                .collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
    }
    text
}

/// Returns a time relative to its baseline.
pub(crate) fn ratio(figure: &Measurement, baselines: &[Baseline]) -> Option<(&'static str, f64)> {
    let name = baseline::baseline_name(&figure.bench, &figure.name);
    let baseline = baselines.iter().find(|baseline| baseline.name == name)?;
    Some((name, figure.nanos()? / baseline.nanos))
}

/// Separates figures that were measured at three sizes or more from the others.
fn split_growth(figures: &[Measurement]) -> (Vec<&Measurement>, Vec<&Measurement>) {
    let all: Vec<&Measurement> = figures.iter().collect();
    all.iter()
        .partition(|figure| sizes_of(&all, figure).len() >= 3)
}

fn same_series<'a>(
    figures: &'a [&Measurement],
    like: &'a Measurement,
) -> impl Iterator<Item = (u64, &'a Measurement)> {
    let name = like.size().map(|(name, _)| name);
    let same = figures
        .iter()
        .filter(move |figure| figure.bench == like.bench);
    same.filter_map(move |figure| {
        let (figure_name, size) = figure.size()?;
        (Some(figure_name) == name).then_some((size, *figure))
    })
}

fn sizes_of(figures: &[&Measurement], like: &Measurement) -> Vec<u64> {
    same_series(figures, like).map(|(size, _)| size).collect()
}

fn format_growth(figure: &Measurement) -> String {
    let mut text = figure
        .per_item
        .map_or_else(|| format_value(figure), format_nanos);
    if let Some(peak) = figure.peak {
        let _ = write!(text, ", {}", format_bytes(peak));
    }
    text
}

fn format_value(figure: &Measurement) -> String {
    match (figure.nanos(), figure.unit.as_str()) {
        (Some(time), _) => format_nanos(time),
        (None, "bytes") => format_bytes(figure.value),
        (None, unit) => format!("{} {unit}", format_number(figure.value)),
    }
}

fn format_nanos(time: f64) -> String {
    match time {
        ..1e3 => format!("{} ns", format_number(time)),
        ..1e6 => format!("{} µs", format_number(time / 1e3)),
        ..1e9 => format!("{} ms", format_number(time / 1e6)),
        _ => format!("{} s", format_number(time / 1e9)),
    }
}

fn format_bytes(count: f64) -> String {
    match count {
        ..1e3 => format!("{} B", format_number(count)),
        ..1e6 => format!("{} kB", format_number(count / 1e3)),
        _ => format!("{} MB", format_number(count / 1e6)),
    }
}

/// Formats a number with three significant digits; larger numbers in full.
fn format_number(number: f64) -> String {
    match number.abs() {
        ..0.1 if number != 0.0 => format!("{number:.3}"),
        ..10.0 if number.fract() != 0.0 => format!("{number:.2}"),
        ..100.0 if number.fract() != 0.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

fn format_thousands(number: u64) -> String {
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
    let path = repository_root().join("docs/performance.md");
    let page = std::fs::read_to_string(&path)?;
    let (before, rest) = page
        .split_once(BEGIN)
        .ok_or("docs/performance.md has no marker `<!-- figures -->`")?;
    let (_, after) = rest
        .split_once(END)
        .ok_or("docs/performance.md has no marker `<!-- end of figures -->`")?;
    std::fs::write(&path, format!("{before}{BEGIN}\n{tables}\n{END}{after}"))?;
    eprintln!("written: {}", path.display());
    Ok(())
}
