//! Agent Skills: directories with a `SKILL.md` that tell a model how to do something.
//!
//! [`Skills`] is the service: it finds skills in the workspace, in the user's home and in bub itself, lists them for the
//! system prompt, gives out their text, and knows which variables a loaded skill was granted. `scan` looks at the disk and
//! notices changes, `frontmatter` says what a valid skill is, `template` fills in its text, `bundled` has our own, `create`
//! starts new ones.

mod bundled;
mod create;
mod frontmatter;
mod loaded;
mod prompt;
mod scan;
mod template;

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bub_settings::Settings;
use serde_json::Value;

use self::{frontmatter::Frontmatter, scan::Scan, template::Template};
use crate::settings::SKILLS_ENV;

#[doc(hidden)]
pub use frontmatter::read_skill;
pub use loaded::LoadedSkills;
pub(crate) use prompt::is_allowed;

const SKILLS_DIR: &str = ".agents/skills";
const LEGACY_SKILLS_DIR: &str = ".agent/skills";

/// Workspaces whose skills are remembered; with more, all are forgotten.
const MAX_CACHED_WORKSPACES: usize = 64;

/// Warnings that are remembered in order not to repeat them.
const MAX_REMEMBERED_WARNINGS: usize = 1000;

/// Where a skill comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkillSource {
    /// The workspace: anybody may have written it.
    Project,
    /// The user's home directory.
    Global,
    /// bub itself.
    Builtin,
}

impl SkillSource {
    const ALL: [Self; 3] = [Self::Project, Self::Global, Self::Builtin];

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|source| source.to_string() == name)
    }
}

impl fmt::Display for SkillSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Project => "project",
            Self::Global => "global",
            Self::Builtin => "builtin",
        })
    }
}

/// A valid skill.
#[derive(Debug, PartialEq, Eq)]
pub struct Skill {
    name: String,
    description: String,
    source: SkillSource,
    asks: Vec<String>,
    text: SkillText,
}

#[derive(Debug, PartialEq, Eq)]
enum SkillText {
    File(PathBuf),
    Builtin(&'static str),
}

impl Skill {
    fn new(name: &str, source: SkillSource, frontmatter: Frontmatter, text: SkillText) -> Self {
        let Frontmatter { description, asks } = frontmatter;
        Self {
            name: name.to_owned(),
            description,
            source,
            asks,
            text,
        }
    }

    /// Its name, which is also that of its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When to use it, in its own words.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Where it comes from.
    pub fn source(&self) -> SkillSource {
        self.source
    }

    /// The environment variables it asks for in `metadata.env`.
    pub fn asks(&self) -> &[String] {
        &self.asks
    }

    /// Where its text stands, for people and models.
    pub fn location(&self) -> String {
        match &self.text {
            SkillText::File(file) => file.display().to_string(),
            SkillText::Builtin(_) => "(part of bub)".to_owned(),
        }
    }
}

/// A `SKILL.md` that cannot be used, or a directory that cannot be searched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SkillProblem {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for SkillProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

/// The skills of every workspace this process works in.
pub struct Skills {
    settings: Arc<Settings>,
    found: Mutex<HashMap<PathBuf, Arc<WorkspaceSkills>>>,
    bundled: OnceLock<Vec<Arc<Skill>>>,
    python: OnceLock<PathBuf>,
    warned: Mutex<HashSet<String>>,
}

/// The skills of one workspace, each name once, sorted.
struct WorkspaceSkills {
    skills: Vec<Arc<Skill>>,
    scan: Scan,
}

impl Skills {
    /// The skills that these settings and this user have. Nothing is read yet.
    pub fn new(settings: &Arc<Settings>) -> Self {
        let skills = Self {
            settings: Arc::clone(settings),
            found: Mutex::default(),
            bundled: OnceLock::new(),
            python: OnceLock::new(),
            warned: Mutex::default(),
        };
        // From the start, children without the grant do not get what is granted to skills.
        for name in settings.get(&SKILLS_ENV).values().flat_map(names) {
            settings.granted_variable(name);
        }
        skills
    }

    /// The skills to use in a workspace, sorted by name. A name that is there twice stands for the first of project,
    /// global and builtin.
    pub fn list(&self, workspace: Option<&Path>) -> Vec<Arc<Skill>> {
        self.workspace_skills(workspace).skills.clone()
    }

    /// What looks like a skill and is none, and why.
    pub fn problems(&self, workspace: Option<&Path>) -> Vec<SkillProblem> {
        self.workspace_skills(workspace).scan.problems.clone()
    }

    /// The skill of that name, whatever its case.
    pub fn find(&self, workspace: Option<&Path>, name: &str) -> Option<Arc<Skill>> {
        find(&self.workspace_skills(workspace).skills, name).cloned()
    }

    /// The text of a skill with everything filled in, which counts as loaded from now on.
    pub fn load(&self, skill: &Arc<Skill>, loaded: &LoadedSkills) -> String {
        let body = self.body(skill);
        loaded.add(skill);
        body
    }

    /// The variables that the loaded skills ask for and `skills.env` grants them.
    pub fn granted_environment(&self, loaded: &LoadedSkills) -> Vec<(String, OsString)> {
        let grants = self.settings.get(&SKILLS_ENV);
        let mut environment: Vec<(String, OsString)> = Vec::new();
        for skill in loaded.all() {
            // What was granted to the user's own skill is not for one of that name in a workspace.
            let key = match skill.source {
                SkillSource::Project => format!("project:{}", skill.name),
                SkillSource::Global | SkillSource::Builtin => skill.name.clone(),
            };
            let granted: Vec<_> = grants.get(&key).into_iter().flat_map(names).collect();
            for name in skill
                .asks
                .iter()
                .filter(|name| granted.contains(&name.as_str()))
            {
                if !environment.iter().any(|(known, _)| known == name)
                    && let Some(value) = self.settings.granted_variable(name)
                {
                    environment.push((name.clone(), value));
                }
            }
        }
        environment
    }

    fn body(&self, skill: &Skill) -> String {
        let (text, directory) = match &skill.text {
            SkillText::Builtin(text) => (Ok((*text).to_owned()), None),
            SkillText::File(file) => (scan::read(file), file.parent()),
        };
        let text = text.unwrap_or_else(|reason| {
            let path = skill.location();
            self.warn_once(format!("{path}: {reason}"), || {
                tracing::warn!(%path, error = %reason, "skill.read_failed");
            });
            String::new()
        });
        let python = self.python.get_or_init(|| python(&self.settings));
        let template = Template {
            settings: &self.settings,
            source: skill.source,
            directory,
            python,
        };
        let mut warn = |text| {
            let (name, path) = (&skill.name, skill.location());
            self.warn_once(format!("{path}: {text}"), || {
                tracing::warn!(skill = %name, %path, reason = %text, "skill.template_problem");
            });
        };
        template.render(&frontmatter::body(&text), &mut warn)
    }

    fn workspace_skills(&self, workspace: Option<&Path>) -> Arc<WorkspaceSkills> {
        let key = workspace.unwrap_or(Path::new(""));
        let known = self
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned();
        if let Some(known) = known.filter(|known| known.scan.is_current()) {
            return known;
        }
        let found = Arc::new(self.scan(workspace));
        let mut all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CACHED_WORKSPACES {
            all.clear();
        }
        all.insert(key.to_owned(), Arc::clone(&found));
        found
    }

    fn scan(&self, workspace: Option<&Path>) -> WorkspaceSkills {
        let scan = Scan::new(&self.roots(workspace));
        let mut skills: Vec<Arc<Skill>> = Vec::new();
        for skill in scan
            .skills
            .iter()
            .chain(self.bundled.get_or_init(bundled::skills))
        {
            if find(&skills, &skill.name).is_none() {
                skills.push(Arc::clone(skill));
            }
        }
        skills.sort_by(|one, other| one.name.cmp(&other.name));
        WorkspaceSkills { skills, scan }
    }

    fn roots(&self, workspace: Option<&Path>) -> Vec<(PathBuf, SkillSource)> {
        let global = self
            .settings
            .environment()
            .user_home()
            .map(|home| home.join(SKILLS_DIR));
        // In the home directory itself, the user's skills are the user's.
        let project = workspace
            .map(|workspace| workspace.join(SKILLS_DIR))
            .filter(|project| {
                !global
                    .as_ref()
                    .is_some_and(|global| is_same_directory(project, global))
            });
        let legacy = workspace.map(|workspace| workspace.join(LEGACY_SKILLS_DIR));
        if let Some(legacy) = legacy.as_ref().filter(|legacy| legacy.is_dir()) {
            let path = legacy.display();
            self.warn_once(path.to_string(), || {
                let hint = format_args!("move these skills to {SKILLS_DIR}");
                tracing::warn!(%path, %hint, "skill.legacy_directory");
            });
        }
        let of = |source| move |root: PathBuf| (root, source);
        let project = project
            .into_iter()
            .chain(legacy)
            .map(of(SkillSource::Project));
        project
            .chain(global.into_iter().map(of(SkillSource::Global)))
            .collect()
    }

    /// Logs a warning unless one with the same text was logged before.
    fn warn_once(&self, text: String, warn: impl FnOnce()) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= MAX_REMEMBERED_WARNINGS {
            warned.clear();
        }
        if !warned.contains(&text) {
            warn();
            warned.insert(text);
        }
    }
}

impl fmt::Debug for Skills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Skills")
    }
}

fn find<'a>(skills: &'a [Arc<Skill>], name: &str) -> Option<&'a Arc<Skill>> {
    // The name of a skill has small letters only.
    skills
        .iter()
        .find(|skill| skill.name.eq_ignore_ascii_case(name))
}

/// The names in an entry of `skills.env`: a list, or text with commas.
fn names(entry: &Value) -> Vec<&str> {
    match entry {
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(str::trim)
            .collect(),
        Value::String(text) => text.split(',').map(str::trim).collect(),
        _ => Vec::new(),
    }
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    one == other
        || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The Python of the user's path, for skills with scripts.
fn python(settings: &Settings) -> PathBuf {
    let path = settings.environment().get("PATH").unwrap_or_default();
    let found = std::env::split_paths(path).map(|directory| directory.join("python3"));
    found
        .into_iter()
        .find(|file| file.is_absolute() && file.is_file())
        .unwrap_or_else(|| "python3".into())
}
