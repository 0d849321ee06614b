//! Agent Skills: directories with a `SKILL.md` that describes how to do a task.
//!
//! [`Skills`] finds skills in the workspace, in the user's home directory and in bub. It lists them for the system
//! prompt, loads their text, and knows which environment variables a loaded skill is granted.
//!
//! * `scan` reads skills from disk and detects changes.
//! * `frontmatter` parses and validates a `SKILL.md`.
//! * `template` expands placeholders in the text of a skill.
//! * `bundled` has the skills that are part of bub.
//! * `create` creates new skills.

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
    sync::{Arc, OnceLock},
};

use bub_settings::{Settings, TrustReport};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{scan::Scan, template::Template};
use crate::settings::SKILLS_ENV;

#[doc(hidden)]
pub use frontmatter::read_skill;
pub use loaded::LoadedSkills;
pub(crate) use prompt::{allowed_skills, is_skill_allowed};

const SKILLS_DIR: &str = ".agents/skills";
const LEGACY_SKILLS_DIR: &str = ".agent/skills";

/// Maximum number of workspaces whose skills are cached. When it is reached, the cache is cleared.
const MAX_CACHED_WORKSPACES: usize = 64;

/// Maximum number of logged warnings remembered to avoid repeats. When it is reached, the list is cleared.
const MAX_REMEMBERED_WARNINGS: usize = 1000;

/// The origin of a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SkillSource {
    /// The workspace, if the user trusts it.
    Project,
    /// The user's home directory.
    Global,
    /// Part of bub.
    Builtin,
}

/// A valid skill.
#[derive(Debug, PartialEq, Eq)]
pub struct Skill {
    name: String,
    description: String,
    source: SkillSource,
    requested_env: Vec<String>,
    text: SkillText,
}

#[derive(Debug, PartialEq, Eq)]
enum SkillText {
    File(PathBuf),
    Builtin(&'static str),
}

impl Skill {
    /// Parses the `SKILL.md` of the skill `name`. The error is the reason why the skill is invalid.
    fn parse(
        content: &str,
        name: &str,
        source: SkillSource,
        text: SkillText,
    ) -> Result<Self, String> {
        let frontmatter = frontmatter::parse(content, name)?;
        Ok(Self {
            name: name.to_owned(),
            description: frontmatter.description,
            source,
            requested_env: frontmatter.requested_env,
            text,
        })
    }

    /// Returns the name of the skill. Its directory has the same name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the `description` of the frontmatter, which says when to use the skill.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the origin of the skill.
    pub fn source(&self) -> SkillSource {
        self.source
    }

    /// Returns the environment variables that the skill requests in `metadata.env`.
    pub fn requested_env(&self) -> &[String] {
        &self.requested_env
    }

    /// Returns the location to show to users and models: the path of the `SKILL.md`, or `(part of bub)`.
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
    /// The file or directory.
    pub file: PathBuf,
    /// Why the file or directory cannot be used, without its path.
    pub reason: String,
}

impl fmt::Display for SkillProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

/// The skills of every workspace that this process works in.
pub struct Skills {
    settings: Arc<Settings>,
    workspaces: Mutex<HashMap<PathBuf, Arc<WorkspaceSkills>>>,
    bundled: OnceLock<Vec<Arc<Skill>>>,
    python: OnceLock<PathBuf>,
    warned: Mutex<HashSet<String>>,
}

/// The skills available in one workspace. Names are unique and sorted.
struct WorkspaceSkills {
    skills: Vec<Arc<Skill>>,
    scan: Scan,
}

impl Skills {
    /// Creates the collection. It reads the skills of a workspace from disk when they are first needed.
    pub fn new(settings: &Arc<Settings>) -> Self {
        let skills = Self {
            settings: Arc::clone(settings),
            workspaces: Mutex::default(),
            bundled: OnceLock::new(),
            python: OnceLock::new(),
            warned: Mutex::default(),
        };
        // After `granted_variable` has read a variable, child processes without the grant do not get it. So read all
        // granted variables now.
        for name in settings.get(&SKILLS_ENV).values().flat_map(variable_names) {
            settings.granted_variable(name);
        }
        skills
    }

    /// Returns the skills available in a workspace, sorted by name. If several skills have the same name, a project
    /// skill has priority over a global skill, and a global skill over a builtin skill. A project skill with the name of
    /// a channel's builtin skill is a problem: it would be loaded without a request.
    pub fn list(&self, workspace: Option<&Path>) -> Vec<Arc<Skill>> {
        self.workspace_skills(workspace).skills.clone()
    }

    /// Returns the problems of a workspace: invalid skills, and directories that cannot be searched.
    pub fn problems(&self, workspace: Option<&Path>) -> Vec<SkillProblem> {
        self.workspace_skills(workspace).scan.problems.clone()
    }

    /// Returns the skill with this name. Case is ignored.
    pub fn find(&self, workspace: Option<&Path>, name: &str) -> Option<Arc<Skill>> {
        find_by_name(&self.workspace_skills(workspace).skills, name).cloned()
    }

    /// Returns the text of a skill with its placeholders expanded, and marks the skill as loaded.
    pub fn load(&self, skill: &Arc<Skill>, loaded: &LoadedSkills) -> String {
        let body = self.render_body(skill);
        loaded.add(skill);
        body
    }

    /// Returns the environment variables that the loaded skills request and the setting `skills.env` grants.
    pub fn granted_environment(&self, loaded: &LoadedSkills) -> Vec<(String, OsString)> {
        let grants = self.settings.get(&SKILLS_ENV);
        let mut environment: Vec<(String, OsString)> = Vec::new();
        for skill in loaded.all() {
            // A grant for the user's own skill does not apply to a workspace skill with the same name.
            let key = match skill.source {
                SkillSource::Project => format!("project:{}", skill.name),
                SkillSource::Global | SkillSource::Builtin => skill.name.clone(),
            };
            let granted = grants.get(&key).map(variable_names).unwrap_or_default();
            for name in skill.requested_env {
                if granted.contains(&name.as_str())
                    && environment.iter().all(|(other, _)| *other != name)
                    && let Some(value) = self.settings.granted_variable(&name)
                {
                    environment.push((name, value));
                }
            }
        }
        environment
    }

    /// Returns the text of a skill without its frontmatter, with placeholders expanded.
    fn render_body(&self, skill: &Skill) -> String {
        let (text, directory) = match &skill.text {
            SkillText::Builtin(text) => (Ok((*text).to_owned()), None),
            SkillText::File(file) => (scan::read_skill_file(file), file.parent()),
        };
        let text = text.unwrap_or_else(|reason| {
            let path = skill.location();
            self.warn_once(format!("{path}: {reason}"), || {
                tracing::warn!(%path, error = %reason, "skill.read_failed");
            });
            String::new()
        });
        let python = self.python.get_or_init(|| find_python(&self.settings));
        let template = Template {
            settings: &self.settings,
            directory,
            python,
        };
        let mut warn = |text| {
            let (name, path) = (&skill.name, skill.location());
            self.warn_once(format!("{path}: {text}"), || {
                tracing::warn!(skill = %name, %path, reason = %text, "skill.template_problem");
            });
        };
        template.render(&frontmatter::strip_frontmatter(&text), &mut warn)
    }

    /// Returns the skills of a workspace. Scans the workspace if its skills are not cached or if files have changed.
    fn workspace_skills(&self, workspace: Option<&Path>) -> Arc<WorkspaceSkills> {
        let key = workspace.unwrap_or(Path::new(""));
        let cached = self.workspaces.lock().get(key).cloned();
        if let Some(cached) = cached.filter(|cached| cached.scan.is_current()) {
            return cached;
        }
        let skills = Arc::new(self.scan_workspace(workspace));
        let mut workspaces = self.workspaces.lock();
        if workspaces.len() >= MAX_CACHED_WORKSPACES {
            workspaces.clear();
        }
        workspaces.insert(key.to_owned(), Arc::clone(&skills));
        skills
    }

    fn scan_workspace(&self, workspace: Option<&Path>) -> WorkspaceSkills {
        let mut roots = self.skill_roots(workspace);
        let mut project = roots
            .iter()
            .filter(|(_, source)| *source == SkillSource::Project);
        let has_project_skills = project.any(|(root, _)| root.is_dir());
        let mut watched = Vec::new();
        if let Some(workspace) = workspace.filter(|_| has_project_skills) {
            let trust = self.settings.workspace_trust();
            let report = trust.inspect(workspace);
            if !report.is_trusted() {
                self.warn_untrusted(&report);
                roots.retain(|(_, source)| *source != SkillSource::Project);
            }
            // A change of any of these files can change the trust.
            watched.extend(trust.file().map(Path::to_owned));
            watched.extend(report.items.into_iter().flat_map(|item| item.files));
        }
        let mut scan = Scan::new(&roots, watched);
        scan.reject_project_skills(&bundled::CHANNEL_SKILLS);
        let mut skills: Vec<Arc<Skill>> = Vec::new();
        let bundled = self.bundled.get_or_init(bundled::bundled_skills);
        for skill in scan.skills.iter().chain(bundled) {
            if find_by_name(&skills, &skill.name).is_none() {
                skills.push(Arc::clone(skill));
            }
        }
        skills.sort_by(|left, right| left.name.cmp(&right.name));
        WorkspaceSkills { skills, scan }
    }

    /// Warns that the skills of a workspace are ignored, unless the user decided so or was warned at the start.
    fn warn_untrusted(&self, report: &TrustReport) {
        let first = self.settings.trust_report();
        let is_reported = first.workspace == report.workspace && !first.is_trusted();
        if is_reported || report.is_declined {
            return;
        }
        let (workspace, ignored) = (report.workspace.display(), report.ignored_text());
        self.warn_once(format!("{workspace}: {ignored}"), || {
            let hint = "run `bub trust` to list and trust these files";
            tracing::warn!(%workspace, %ignored, hint, "workspace.untrusted");
        });
    }

    /// Returns the directories with skills outside the workspace, for commands that read a skill's files.
    pub(crate) fn roots_outside_workspace(&self) -> Vec<PathBuf> {
        let plugins = std::fs::read_dir(self.plugin_skills())
            .into_iter()
            .flatten();
        // Each is a link to the directory of a skill.
        let plugins = plugins.filter_map(|entry| entry.ok()?.path().canonicalize().ok());
        self.skills_directory(None)
            .into_iter()
            .chain(plugins)
            .collect()
    }

    /// Returns the directory with links to the skills of external plugins.
    fn plugin_skills(&self) -> PathBuf {
        self.settings.home().join(bub_settings::PLUGIN_SKILLS_DIR)
    }

    /// Returns the directories to search for skills, with their sources, highest priority first.
    fn skill_roots(&self, workspace: Option<&Path>) -> Vec<(PathBuf, SkillSource)> {
        let global = self.skills_directory(None);
        let is_global = |project: &PathBuf| {
            let global = global.as_ref();
            global.is_some_and(|global| is_same_directory(project, global))
        };
        // If the workspace is the home directory, its skills are global, not project skills.
        let project = workspace.map(|workspace| workspace.join(SKILLS_DIR));
        let project = project.filter(|project| !is_global(project));
        let legacy = workspace.map(|workspace| workspace.join(LEGACY_SKILLS_DIR));
        if let Some(legacy) = legacy.as_ref().filter(|legacy| legacy.is_dir()) {
            let path = legacy.display();
            self.warn_once(path.to_string(), || {
                let hint = format_args!("move these skills to {SKILLS_DIR}");
                tracing::warn!(%path, %hint, "skill.legacy_directory");
            });
        }
        let roots = [
            project.map(|root| (root, SkillSource::Project)),
            legacy.map(|root| (root, SkillSource::Project)),
            global.map(|root| (root, SkillSource::Global)),
            Some((self.plugin_skills(), SkillSource::Global)),
        ];
        roots.into_iter().flatten().collect()
    }

    /// Logs a warning unless one with the same text was logged before.
    fn warn_once(&self, text: String, warn: impl FnOnce()) {
        let mut warned = self.warned.lock();
        if warned.len() >= MAX_REMEMBERED_WARNINGS {
            warned.clear();
        }
        if !warned.contains(&text) {
            warn();
            warned.insert(text);
        }
    }
}

fn find_by_name<'a>(skills: &'a [Arc<Skill>], name: &str) -> Option<&'a Arc<Skill>> {
    // Names of skills are ASCII.
    skills
        .iter()
        .find(|skill| skill.name.eq_ignore_ascii_case(name))
}

/// Returns the variable names in a value of the map `skills.env`. The value is a list or comma-separated text.
fn variable_names(entry: &Value) -> Vec<&str> {
    match entry {
        Value::Array(items) => {
            let names = items.iter().filter_map(Value::as_str);
            names.map(str::trim).collect()
        }
        Value::String(text) => text.split(',').map(str::trim).collect(),
        _ => Vec::new(),
    }
}

fn is_same_directory(left: &Path, right: &Path) -> bool {
    left == right
        || matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}

/// Returns the path of the first `python3` in `PATH`, for skills with scripts. Returns `python3` if none exists.
fn find_python(settings: &Settings) -> PathBuf {
    let path = settings.environment().get("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(path).map(|directory| directory.join("python3"));
    let python = candidates.find(|file| file.is_absolute() && file.is_file());
    python.unwrap_or_else(|| "python3".into())
}
