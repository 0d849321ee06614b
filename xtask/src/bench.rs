//! `cargo xtask bench`: builds all benchmarks, runs them in order, and reports.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    TaskResult, baseline, cargo_build, command_output,
    divan::{self, Measurement},
    report, repository_root,
};

/// Command-line options.
#[derive(Default)]
pub(crate) struct BenchOptions {
    is_quick: bool,
    writes_docs: bool,
    only: Vec<String>,
    json: Option<PathBuf>,
    /// Path of an already built program.
    bub: Option<String>,
}

impl BenchOptions {
    pub(crate) fn parse(words: &[&str]) -> TaskResult<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .map(ToString::to_string)
                    .ok_or(format!("missing value of `{word}`"))
            };
            match *word {
                "--quick" => options.is_quick = true,
                "--write-docs" => options.writes_docs = true,
                "--only" => options.only.push(value()?),
                "--json" => options.json = Some(value()?.into()),
                "--bub" => options.bub = Some(value()?),
                _ => return Err(format!("unknown option `{word}`\n{}", crate::USAGE).into()),
            }
        }
        if options.writes_docs && (options.is_quick || !options.only.is_empty()) {
            return Err(
                "`--write-docs` replaces all figures: run it without `--quick` and `--only`".into(),
            );
        }
        // Make the path absolute, because benchmarks run in other directories.
        options.bub = options.bub.map(|path| absolute_path(&path)).transpose()?;
        Ok(options)
    }

    fn is_selected(&self, bench: &Bench) -> bool {
        let is_named = |name: &String| {
            *name == bench.package
                || *name == bench.name
                || *name == format!("{}/{}", bench.package, bench.name)
        };
        self.only.is_empty() || self.only.iter().any(is_named)
    }
}

/// Returns the absolute path of an existing program.
fn absolute_path(path: &str) -> TaskResult<String> {
    let absolute = Path::new(path)
        .canonicalize()
        .map_err(|error| format!("--bub {path}: {error}"))?;
    Ok(absolute.to_string_lossy().into_owned())
}

/// Checks the output path before measuring.
fn check_writable(path: &Path) -> TaskResult<()> {
    let open = || -> std::io::Result<()> {
        if let Some(parent) = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)?;
        Ok(())
    };
    open().map_err(|error| format!("cannot write `{}`: {error}", path.display()).into())
}

/// Source file of a benchmark.
struct Bench {
    package: String,
    name: String,
    /// Whether it uses divan and accepts its options.
    is_divan: bool,
}

pub(crate) fn run(options: &BenchOptions) -> TaskResult<()> {
    let benches: Vec<Bench> = find_benches()?
        .into_iter()
        .filter(|bench| options.is_selected(bench))
        .collect();
    if benches.is_empty() {
        return Err("unknown benchmark; see `crates/*/benches`".into());
    }
    let path = options
        .json
        .clone()
        .unwrap_or_else(|| repository_root().join("target/bench.json"));
    check_writable(&path)?;
    let programs = build_programs(&benches, options.bub.is_none())?;
    let machine = describe_machine();
    let baselines = baseline::measure_baselines()?;
    let mut figures = Vec::new();
    for bench in &benches {
        let measured = run_bench(bench, &programs, options)?;
        if measured.is_empty() {
            return Err(format!("{}/{} printed no figures", bench.package, bench.name).into());
        }
        figures.extend(measured);
    }
    let text = report::format_tables(&machine, options.is_quick, &baselines, &figures);
    println!("{text}");
    let with_ratio = |figure: &Measurement| {
        let mut value = figure.to_json();
        if let Some((name, ratio)) = report::ratio(figure, &baselines) {
            value["baseline"] = name.into();
            value["ratio"] = ratio.into();
        }
        value
    };
    let all = json!({
        "machine": machine.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<Value>(),
        "quick": options.is_quick,
        "baseline_nanos":
            baselines.iter().map(|baseline| (baseline.name.to_owned(), json!(baseline.nanos))).collect::<Value>(),
        "figures": figures.iter().map(with_ratio).collect::<Vec<_>>(),
    });
    std::fs::write(&path, serde_json::to_string_pretty(&all)?)?;
    eprintln!("figures: {}", path.display());
    if options.writes_docs {
        report::write_docs(&text)
    } else {
        Ok(())
    }
}

/// Returns every `crates/*/benches/*.rs`, sorted.
fn find_benches() -> TaskResult<Vec<Bench>> {
    let mut benches = Vec::new();
    for package in std::fs::read_dir(repository_root().join("crates"))? {
        let package = package?;
        let Ok(sources) = std::fs::read_dir(package.path().join("benches")) else {
            continue;
        };
        for source in sources {
            let path = source?.path();
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let is_divan = std::fs::read_to_string(&path)?.contains("divan::main()");
            benches.push(Bench {
                package: package.file_name().to_string_lossy().into_owned(),
                name,
                is_divan,
            });
        }
    }
    benches.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    Ok(benches)
}

/// Builds the benchmarks, the plugin that one of them calls, and the program that one of them
/// starts.
fn build_programs(benches: &[Bench], builds_bub: bool) -> TaskResult<Vec<Value>> {
    let mut args = vec!["build", "--profile", "bench"];
    for bench in benches {
        args.extend(["--package", &bench.package, "--bench", &bench.name]);
    }
    if benches.iter().any(|bench| bench.name == "roundtrip") {
        args.extend(["--example", "probe"]);
    }
    let mut programs = cargo_build(&args)?;
    if builds_bub && benches.iter().any(|bench| bench.name == "growth") {
        programs.extend(cargo_build(&[
            "build",
            "--release",
            "--package",
            "bub-cli",
            "--bin",
            "bub",
        ])?);
    }
    Ok(programs)
}

/// Returns the executable that was built for a target of a package.
fn find_program<'a>(
    programs: &'a [Value],
    package: &str,
    kind: &str,
    name: &str,
) -> Option<&'a str> {
    let program = programs.iter().find(|program| {
        let manifest = program["manifest_path"].as_str().unwrap_or_default();
        program["target"]["name"] == name
            && program["target"]["kind"][0] == kind
            && manifest.ends_with(&format!("/{package}/Cargo.toml"))
    });
    program?["executable"].as_str()
}

fn run_bench(
    bench: &Bench,
    programs: &[Value],
    options: &BenchOptions,
) -> TaskResult<Vec<Measurement>> {
    let name = format!("{}/{}", bench.package, bench.name);
    eprintln!("{name} …");
    let executable = find_program(programs, &bench.package, "bench", &bench.name)
        .ok_or(format!("cargo did not build `{name}`"))?;
    let mut command = Command::new(executable);
    command
        .arg("--bench")
        .current_dir(repository_root().join("crates").join(&bench.package))
        .stderr(Stdio::inherit());
    match (bench.is_divan, options.is_quick) {
        (true, true) => command.args(["--sample-count", "10", "--max-time", "0.5"]),
        (true, false) => command.args(["--max-time", "10"]),
        (false, true) => command.arg("--quick"),
        (false, false) => &mut command,
    };
    if bench.name == "growth" {
        let built = find_program(programs, "bub-cli", "bin", "bub");
        let bub = options
            .bub
            .as_deref()
            .or(built)
            .ok_or("cargo did not build `bub`")?;
        command.arg(format!("--bub={bub}"));
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{name} failed").into());
    }
    Ok(divan::parse_output(
        &name,
        &String::from_utf8_lossy(&output.stdout),
    ))
}

/// Describes the machine.
fn describe_machine() -> Vec<(&'static str, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpus, load) = (read("/proc/cpuinfo"), read("/proc/loadavg"));
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let changed = if command_output("git", &["status", "--porcelain"]).is_empty() {
        ""
    } else {
        ", with changes"
    };
    vec![
        ("cores", cores.to_string()),
        (
            "cpu",
            model.map_or("unknown", |(_, model)| model).to_owned(),
        ),
        (
            "kernel",
            read("/proc/sys/kernel/osrelease").trim().to_owned(),
        ),
        ("rustc", command_output("rustc", &["--version"])),
        (
            "commit",
            command_output("git", &["rev-parse", "--short", "HEAD"]) + changed,
        ),
        (
            "load before",
            load.split(' ').next().unwrap_or_default().to_owned(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::BenchOptions;

    #[test]
    fn the_docs_are_only_written_by_a_whole_run() {
        assert!(BenchOptions::parse(&["--write-docs"]).is_ok());
        for words in [
            ["--quick", "--write-docs", "--quick"],
            ["--write-docs", "--only", "view"],
        ] {
            let refused = BenchOptions::parse(&words)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(
                refused.contains("without `--quick` and `--only`"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_place_for_the_figures_that_cannot_be_written_is_named() {
        let refused = super::check_writable("/proc/none/x.json".as_ref())
            .err()
            .map(|error| error.to_string());
        assert!(
            refused
                .unwrap_or_default()
                .starts_with("cannot write `/proc/none/x.json`")
        );
    }
}
