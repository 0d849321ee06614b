//! Parses the output of benchmarks: tables of divan, and lines `figure NAME VALUE UNIT` of
//! benchmarks that measure themselves.

use serde_json::{Value, json};

/// One measured figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    /// Crate and benchmark.
    pub(crate) bench: String,
    /// Parts of the name, separated by slashes; a size comes last.
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// Nanoseconds per item, if items are counted.
    pub(crate) per_item: Option<f64>,
    pub(crate) allocations: Option<f64>,
    /// Maximum of allocated bytes.
    pub(crate) peak: Option<f64>,
}

impl Measurement {
    /// Returns the value in nanoseconds if it is a time.
    pub(crate) fn nanos(&self) -> Option<f64> {
        time_unit_nanos(&self.unit).map(|unit| self.value * unit)
    }

    /// Returns the name without the size, and the size.
    pub(crate) fn size(&self) -> Option<(&str, u64)> {
        let (name, size) = self.name.rsplit_once('/')?;
        Some((name, size.parse().ok()?))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "bench": self.bench, "name": self.name, "value": self.value, "unit": self.unit,
            "nanos_per_item": self.per_item, "allocations": self.allocations, "peak_bytes": self.peak,
        })
    }
}

fn time_unit_nanos(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    })
}

/// Parses a number and its unit as written by divan: `1.567 µs`, `637.8 Kitem/s`, `13.49 KB`.
fn parse_quantity(cell: &str) -> Option<(f64, &str)> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    Some((number.parse().ok()?, unit))
}

fn unit_scale(unit: &str, base: &str) -> Option<f64> {
    Some(match unit.strip_suffix(base)? {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => return None,
    })
}

pub(crate) fn parse_output(bench: &str, output: &str) -> Vec<Measurement> {
    let mut reader = BenchOutputParser {
        bench,
        figures: Vec::new(),
        column: None,
        path: Vec::new(),
        section: "",
    };
    output.lines().for_each(|line| reader.parse_line(line));
    reader.figures
}

struct BenchOutputParser<'a> {
    bench: &'a str,
    figures: Vec<Measurement>,
    /// Column of the fastest sample in the table.
    column: Option<usize>,
    /// Names of the current line and its parents.
    path: Vec<String>,
    /// Section of the numbers in the current line.
    section: &'static str,
}

impl BenchOutputParser<'_> {
    fn parse_line(&mut self, line: &str) {
        if let Some(figure) = line.strip_prefix("figure ") {
            let mut words = figure.split(' ');
            if let (Some(name), Some(value), Some(unit)) =
                (words.next(), words.next(), words.next())
                && let Ok(value) = value.parse()
            {
                self.add_figure(name.to_owned(), value, unit);
            }
        } else if let Some(at) = line.find("fastest") {
            self.column = line.get(..at).map(|before| before.chars().count());
        } else if let Some(column) = self.column {
            let prefix: String = line.chars().take(column).collect();
            let rest: String = line.chars().skip(column).collect();
            self.parse_row(&prefix, rest.split('│').next().unwrap_or_default().trim());
        }
    }

    fn parse_row(&mut self, prefix: &str, cell: &str) {
        let name = prefix.trim_start_matches(['│', '├', '╰', '─', ' ']);
        if name.is_empty() {
            return self.parse_detail(cell);
        }
        // Each level of the tree is three columns wide.
        let depth = (prefix.chars().count() - name.chars().count()) / 3;
        self.path.truncate(depth.saturating_sub(1));
        self.path.push(name.trim().to_owned());
        self.section = "";
        if let Some((value, unit)) = parse_quantity(cell) {
            self.add_figure(self.path.join("/"), value, unit);
        }
    }

    fn parse_detail(&mut self, cell: &str) {
        self.section = match cell {
            "max alloc:" => "peak",
            "alloc:" => "count",
            _ if cell.ends_with(':') => "other",
            _ => self.section,
        };
        let (Some(figure), Some((value, unit))) = (self.figures.last_mut(), parse_quantity(cell))
        else {
            return;
        };
        if let Some(scale) = unit_scale(unit, "item/s") {
            figure.per_item = Some(1e9 / (value * scale));
        } else if self.section == "count" && unit.is_empty() {
            figure.allocations = Some(value);
        } else if self.section == "peak"
            && let Some(scale) = unit_scale(unit, "B")
        {
            figure.peak = Some(value * scale);
        }
    }

    fn add_figure(&mut self, name: String, value: f64, unit: &str) {
        let (bench, unit) = (self.bench.to_owned(), unit.to_owned());
        self.figures.push(Measurement {
            bench,
            name,
            value,
            unit,
            ..Measurement::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Timer precision: 20 ns
decode               fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ long_stream                     │               │               │               │         │
│  ├─ 100            149.7 µs      │ 239 µs        │ 206.3 µs      │ 199.7 µs      │ 5       │ 5
│  │                 667.8 Kitem/s │ 418.3 Kitem/s │ 484.6 Kitem/s │ 500.5 Kitem/s │         │
│  │                 max alloc:    │               │               │               │         │
│  │                   66          │ 66            │ 66            │ 66            │         │
│  │                   13.49 KB    │ 13.49 KB      │ 13.49 KB      │ 13.49 KB      │         │
│  │                 alloc:        │               │               │               │         │
│  │                   624         │ 624           │ 624           │ 624           │         │
│  │                   158.8 KB    │ 158.8 KB      │ 158.8 KB      │ 158.8 KB      │         │
│  ╰─ code line      1.534 ms      │ 37.87 ms      │ 5.68 ms       │ 16.69 ms      │ 5       │ 5
╰─ sse_only          1.189 ms      │ 29.41 ms      │ 1.371 ms      │ 10.12 ms      │ 5       │ 5
figure open/1000 42.125 µs
";

    #[test]
    fn tables_and_lines_are_read() {
        let figures = parse_output("bub-model/decode", OUTPUT);
        let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "long_stream/100",
                "long_stream/code line",
                "sse_only",
                "open/1000"
            ]
        );
        let first = &figures[0];
        assert_eq!(first.nanos(), Some(149_700.0));
        assert_eq!(first.size(), Some(("long_stream", 100)));
        assert_eq!(first.per_item.map(f64::round), Some(1497.0));
        assert_eq!(
            (first.allocations, first.peak),
            (Some(624.0), Some(13_490.0))
        );
        assert_eq!(figures[1].size(), None);
        assert_eq!(figures[3].nanos(), Some(42_125.0));
    }
}
