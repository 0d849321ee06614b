//! Finding the skills on disk, and noticing that nothing changed.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Skill, SkillProblem, SkillSource, SkillText, frontmatter};

pub(super) const SKILL_FILE: &str = "SKILL.md";

/// Longer files are no notes for a model.
const MAX_SKILL_BYTES: u64 = 1024 * 1024;

/// More directories are not looked at.
const MAX_SKILLS: usize = 1000;

/// A file changed less than this before it was read may change again without a trace in its times.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

/// The skills of some directories as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All that is valid, in the order of the roots and then of the names.
    pub(super) skills: Vec<Arc<Skill>>,
    pub(super) problems: Vec<SkillProblem>,
    /// Everything that was looked at.
    stamps: Vec<(PathBuf, Option<FileStamp>)>,
    /// Whether a later change must show in the stamps.
    is_settled: bool,
}

impl Scan {
    /// Looks at every skill in the roots.
    pub(super) fn new(roots: &[(PathBuf, SkillSource)]) -> Self {
        let mut scan = Self::default();
        let start = SystemTime::now();
        for (root, source) in roots {
            scan.root(root, *source);
        }
        let is_old = |stamp: &FileStamp| {
            start
                .duration_since(stamp.modified)
                .is_ok_and(|age| age > MTIME_GRANULARITY)
        };
        scan.is_settled = scan
            .stamps
            .iter()
            .filter_map(|(_, stamp)| stamp.as_ref())
            .all(is_old);
        scan
    }

    /// Whether a new scan would find the same.
    pub(super) fn is_current(&self) -> bool {
        self.is_settled
            && self
                .stamps
                .iter()
                .all(|(path, stamp)| FileStamp::from_path(path).0 == *stamp)
    }

    fn root(&mut self, root: &Path, source: SkillSource) {
        if !self.read_metadata(root).is_some_and(|found| found.is_dir()) {
            return;
        }
        let names = fs::read_dir(root).and_then(|entries| {
            entries
                .take(MAX_SKILLS + 1)
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<Vec<_>>>()
        });
        let mut names = match names {
            Ok(names) => names,
            Err(error) => return self.problem(root, &format!("cannot be read: {error}")),
        };
        if names.len() > MAX_SKILLS {
            self.problem(
                root,
                &format!("has more than {MAX_SKILLS} entries; some are not looked at"),
            );
        }
        names.sort_unstable();
        for name in names {
            self.directory(&root.join(&name), &name.to_string_lossy(), source);
        }
    }

    fn directory(&mut self, directory: &Path, name: &str, source: SkillSource) {
        let file = directory.join(SKILL_FILE);
        if !self
            .read_metadata(directory)
            .is_some_and(|found| found.is_dir())
            || self.read_metadata(&file).is_none()
        {
            return;
        }
        let location = fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
        // Whoever wrote the workspace must not have files of its owner read to the model.
        if source == SkillSource::Project && !is_in_workspace(&location, directory) {
            return self.problem(&file, "leads out of the workspace");
        }
        match read(&file).and_then(|text| frontmatter::read(&text, name)) {
            Ok(frontmatter) => {
                self.skills.push(Arc::new(Skill::new(
                    name,
                    source,
                    frontmatter,
                    SkillText::File(location),
                )));
            }
            Err(reason) => self.problem(&file, &reason),
        }
    }

    /// Looks at a path and remembers what was there. What is there but cannot be looked at is a problem.
    fn read_metadata(&mut self, path: &Path) -> Option<Metadata> {
        let (stamp, found) = FileStamp::from_path(path);
        self.stamps.push((path.to_owned(), stamp));
        match found {
            Ok(found) => Some(found),
            Err(error) => {
                if !is_absent(path, &error) {
                    self.problem(path, &format!("cannot be read: {error}"));
                }
                None
            }
        }
    }

    fn problem(&mut self, file: &Path, reason: &str) {
        self.problems.push(SkillProblem {
            file: file.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

/// Whether the file of a skill in that directory of a workspace, `.agents/skills/name`, is in the workspace, too.
fn is_in_workspace(file: &Path, directory: &Path) -> bool {
    let workspace = directory.ancestors().nth(3).map(fs::canonicalize);
    workspace.is_some_and(|workspace| workspace.is_ok_and(|workspace| file.starts_with(workspace)))
}

/// A link that leads nowhere is something, though what it leads to is not.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    ) && fs::symlink_metadata(path).is_err()
}

/// The text of a skill's file, or why it cannot be used.
pub(super) fn read(file: &Path) -> Result<String, String> {
    let bytes = read_bytes(file).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "not valid UTF-8 text".to_owned())
}

fn read_bytes(file: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(file)?;
    if !found.is_file() {
        // A pipe or a device has no end, and opening one may hang.
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    if found.len() > MAX_SKILL_BYTES
        || File::open(file)?
            .take(MAX_SKILL_BYTES + 1)
            .read_to_end(&mut bytes)? as u64
            > MAX_SKILL_BYTES
    {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    Ok(bytes)
}

/// What changes when a file or a directory does.
#[derive(Debug, PartialEq)]
struct FileStamp {
    place: (u64, u64),
    size: u64,
    modified: SystemTime,
    changed: (i64, i64),
}

impl FileStamp {
    fn from_path(path: &Path) -> (Option<Self>, io::Result<Metadata>) {
        let found = fs::metadata(path);
        let stamp = found.as_ref().ok().map(|found| Self {
            place: (found.dev(), found.ino()),
            size: found.size(),
            modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: (found.ctime(), found.ctime_nsec()),
        });
        (stamp, found)
    }
}
