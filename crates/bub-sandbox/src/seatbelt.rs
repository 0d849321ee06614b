//! The confinement as a Seatbelt profile for `sandbox-exec` on macOS.
//!
//! The profile is generated and tested as text on every system. It has not been tested on macOS.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use crate::Confinement;

/// Rules that every program needs to start.
const BASE: &str = r#"(version 1)
(deny default)
(allow process-exec)
(allow process-fork)
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-read-metadata)
(allow file-read* (literal "/"))
(allow file-ioctl (regex #"^/dev/tty.*"))
"#;
/// Directories with programs, libraries and their configuration.
pub(crate) const SYSTEM_DIRECTORIES: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/opt",
    "/System",
    "/Library",
    "/Applications/Xcode.app",
    "/private/etc",
    "/private/var/db/dyld",
    "/private/var/select",
];
/// Data of the system in other directories that programs read.
#[cfg(not(target_os = "linux"))]
pub(crate) const SYSTEM_DATA: &[&str] = &[];
/// Devices that programs use.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/fd",
];

/// Returns the profile of a confinement. Later rules have priority.
pub fn seatbelt_profile(confinement: &Confinement) -> String {
    let mut profile = BASE.to_owned();
    let system = SYSTEM_DIRECTORIES.iter().map(Path::new);
    add_rule(&mut profile, "allow file-read*", system);
    add_rule(
        &mut profile,
        "allow file-read* file-write*",
        DEVICES.iter().map(Path::new),
    );
    let hidden = confinement.hidden.iter().map(PathBuf::as_path);
    let hidden = confinement.covered_home().into_iter().chain(hidden);
    add_rule(&mut profile, "deny file-read* file-write*", hidden);
    let workspace = [confinement.workspace.as_path()];
    let workspace_access = if confinement.can_write {
        "allow file-read* file-write*"
    } else {
        "allow file-read*"
    };
    add_rule(&mut profile, workspace_access, workspace);
    let readable = confinement.readable.iter().map(PathBuf::as_path);
    add_rule(&mut profile, "allow file-read*", readable);
    let writable = confinement.writable.iter().map(PathBuf::as_path);
    let writable = writable.chain([confinement.temp.as_path()]);
    add_rule(&mut profile, "allow file-read* file-write*", writable);
    let inside = |path: &&PathBuf| path.starts_with(&confinement.workspace);
    let hidden_inside = confinement.hidden.iter().filter(inside);
    add_rule(
        &mut profile,
        "deny file-read* file-write*",
        hidden_inside.map(PathBuf::as_path),
    );
    let protected = confinement.protected.iter().map(PathBuf::as_path);
    add_rule(&mut profile, "deny file-write*", protected);
    profile.push_str(if confinement.network {
        "(allow network*)\n(allow system-socket)\n"
    } else {
        "(allow network* (local ip \"localhost:*\"))\n(allow network* (remote ip \"localhost:*\"))\n"
    });
    profile
}

/// Adds a rule for all paths, if there are any.
fn add_rule<'a>(profile: &mut String, rule: &str, paths: impl IntoIterator<Item = &'a Path>) {
    let mut filters = String::new();
    for path in paths {
        let text = path.to_string_lossy();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        // Writing to a string cannot fail.
        let _ = write!(filters, " (subpath \"{quoted}\")");
    }
    if !filters.is_empty() {
        let _ = writeln!(profile, "({rule}{filters})");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SandboxProfile;

    fn profile(profile: SandboxProfile) -> String {
        let mut confinement = Confinement::new(
            profile,
            Path::new("/Users/a/my \"work\""),
            Path::new("/private/tmp/x"),
            Some(Path::new("/Users/a")),
            "/usr/bin".as_ref(),
        );
        confinement.readable = vec!["/Users/a/.gitconfig".into()];
        confinement.hidden = vec!["/Users/a/my \"work\"/.bub".into()];
        confinement.protected = vec!["/Users/a/my \"work\"/.env".into()];
        seatbelt_profile(&confinement)
    }

    #[test]
    fn a_profile_lists_what_a_command_can_reach() {
        let expected = r#"(deny file-read* file-write* (subpath "/Users/a") (subpath "/Users/a/my \"work\"/.bub"))
(allow file-read* file-write* (subpath "/Users/a/my \"work\""))
(allow file-read* (subpath "/Users/a/.gitconfig"))
(allow file-read* file-write* (subpath "/private/tmp/x"))
(deny file-read* file-write* (subpath "/Users/a/my \"work\"/.bub"))
(deny file-write* (subpath "/Users/a/my \"work\"/.env"))
(allow network* (local ip "localhost:*"))
(allow network* (remote ip "localhost:*"))
"#;
        let text = profile(SandboxProfile::Workspace);
        assert!(text.starts_with(BASE), "{text}");
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn the_read_only_profile_does_not_write_to_the_workspace() {
        let text = profile(SandboxProfile::ReadOnly);
        assert!(text.contains("(allow file-read* (subpath \"/Users/a/my"));
        assert!(!text.contains("file-write* (subpath \"/Users/a/my \\\"work\\\"\"))"));
    }
}
