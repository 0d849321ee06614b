//! Reads skills from disk and detects changes.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Skill, SkillProblem, SkillSource, SkillText};

pub(super) const SKILL_FILE: &str = "SKILL.md";

/// Maximum size of a `SKILL.md`. A skill with a larger file is invalid.
const MAX_SKILL_BYTES: u64 = 1024 * 1024;

/// Maximum number of files and directories read in one skills directory.
const MAX_SKILLS: usize = 1000;

/// Maximum granularity of modification times. A file modified shortly before it was read can change again without a
/// new modification time.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

/// The skills of several directories as they were at one point in time.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The valid skills, ordered by skills directory and then by name.
    pub(super) skills: Vec<Arc<Skill>>,
    pub(super) problems: Vec<SkillProblem>,
    /// Every path that was checked, with its stamp. The stamp is `None` if the path did not exist.
    stamps: Vec<(PathBuf, Option<FileStamp>)>,
    /// Whether all files are so old that every later change of a file changes its stamp.
    is_settled: bool,
}

impl Scan {
    /// Reads all skills in the skills directories `roots`. The scan is also outdated if a path in `watched` changes.
    pub(super) fn new(roots: &[(PathBuf, SkillSource)], watched: Vec<PathBuf>) -> Self {
        let mut scan = Self::default();
        let start = SystemTime::now();
        let stamps = watched.into_iter().map(|path| {
            let stamp = FileStamp::from_path(&path).0;
            (path, stamp)
        });
        scan.stamps.extend(stamps);
        for (root, source) in roots {
            scan.scan_root(root, *source);
        }
        let is_old = |stamp: &FileStamp| {
            let age = start.duration_since(stamp.modified);
            age.is_ok_and(|age| age > MTIME_GRANULARITY)
        };
        let mut stamps = scan.stamps.iter().flat_map(|(_, stamp)| stamp);
        scan.is_settled = stamps.all(is_old);
        scan
    }

    /// Returns whether no checked path can have changed, so that a new scan would have the same result.
    pub(super) fn is_current(&self) -> bool {
        let mut stamps = self.stamps.iter();
        self.is_settled && stamps.all(|(path, stamp)| FileStamp::from_path(path).0 == *stamp)
    }

    /// Turns project skills with one of these names into problems.
    pub(super) fn reject_project_skills(&mut self, names: &[&str]) {
        let is_rejected = |skill: &mut Arc<Skill>| {
            skill.source == SkillSource::Project && names.contains(&skill.name.as_str())
        };
        for skill in self.skills.extract_if(.., is_rejected) {
            self.problems.push(SkillProblem {
                file: skill.location().into(),
                reason: format!(
                    "messages of the channel `{}` load the skill of this name, so a project skill cannot replace it; rename \
                     the directory and `name`, or move it to ~/{}",
                    skill.name,
                    super::SKILLS_DIR,
                ),
            });
        }
    }

    /// Reads the skills in one skills directory.
    fn scan_root(&mut self, root: &Path, source: SkillSource) {
        if !self.is_directory(root) {
            return;
        }
        let names: io::Result<Vec<_>> = fs::read_dir(root).and_then(|entries| {
            let entries = entries.take(MAX_SKILLS + 1);
            entries.map(|entry| Ok(entry?.file_name())).collect()
        });
        let mut names = match names {
            Ok(names) => names,
            Err(error) => return self.add_problem(root, &format!("cannot be read: {error}")),
        };
        if names.len() > MAX_SKILLS {
            self.add_problem(
                root,
                &format!("has more than {MAX_SKILLS} entries; bub reads only {MAX_SKILLS} of them"),
            );
        }
        names.sort_unstable();
        for name in names {
            self.scan_directory(&root.join(&name), &name.to_string_lossy(), source);
        }
    }

    /// Reads the skill in `directory`, if it contains one.
    fn scan_directory(&mut self, directory: &Path, name: &str, source: SkillSource) {
        let file = directory.join(SKILL_FILE);
        if !self.is_directory(directory) || self.read_metadata(&file).is_none() {
            return;
        }
        let location = fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
        // The author of a workspace must not be able to show other files of the user to the model.
        if source == SkillSource::Project && !is_in_workspace(&location, directory) {
            return self.add_problem(
                &file,
                "links to a file outside the workspace; copy the file into the workspace",
            );
        }
        let text = SkillText::File(location);
        let content = read_skill_file(&file);
        match content.and_then(|content| Skill::parse(&content, name, source, text)) {
            Ok(skill) => self.skills.push(Arc::new(skill)),
            Err(reason) => self.add_problem(&file, &reason),
        }
    }

    fn is_directory(&mut self, path: &Path) -> bool {
        let metadata = self.read_metadata(path);
        metadata.is_some_and(|metadata| metadata.is_dir())
    }

    /// Reads the metadata of a path and remembers its stamp. Adds a problem if the path exists but cannot be read.
    fn read_metadata(&mut self, path: &Path) -> Option<Metadata> {
        let (stamp, metadata) = FileStamp::from_path(path);
        self.stamps.push((path.to_owned(), stamp));
        match metadata {
            Ok(metadata) => Some(metadata),
            Err(error) => {
                if !is_absent(path, &error) {
                    self.add_problem(path, &format!("cannot be read: {error}"));
                }
                None
            }
        }
    }

    fn add_problem(&mut self, file: &Path, reason: &str) {
        self.problems.push(SkillProblem {
            file: file.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

/// Returns whether `file` is in the workspace of a skill. `directory` is the directory of the skill,
/// `.agents/skills/name` in the workspace.
fn is_in_workspace(file: &Path, directory: &Path) -> bool {
    let workspace = directory.ancestors().nth(3).map(fs::canonicalize);
    workspace.is_some_and(|workspace| workspace.is_ok_and(|workspace| file.starts_with(workspace)))
}

/// Returns whether nothing exists at `path`. A broken symbolic link exists, although its target does not.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    ) && fs::symlink_metadata(path).is_err()
}

/// Reads the text of a `SKILL.md`. The error is the reason why it cannot be used.
pub(super) fn read_skill_file(file: &Path) -> Result<String, String> {
    let bytes = crate::read_head(file, MAX_SKILL_BYTES + 1);
    let bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_SKILL_BYTES {
        return Err("cannot be read: larger than 1 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "not valid UTF-8 text; save the file as UTF-8".to_owned())
}

/// Metadata that changes when a file or a directory changes.
#[derive(Debug, PartialEq)]
struct FileStamp {
    /// Device and inode.
    file_id: (u64, u64),
    size: u64,
    modified: SystemTime,
    changed: (i64, i64),
}

impl FileStamp {
    fn from_path(path: &Path) -> (Option<Self>, io::Result<Metadata>) {
        let metadata = fs::metadata(path);
        let stamp = metadata.as_ref().ok().map(|metadata| Self {
            file_id: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        });
        (stamp, metadata)
    }
}
