//! Creates and checks skills for `bub skill`.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{SKILLS_DIR, Skill, SkillProblem, SkillSource, SkillText, Skills, frontmatter, scan};

impl Skills {
    /// Returns the skills directory of a workspace, or of the user's home directory if `workspace` is `None`. Returns
    /// `None` if the home directory is unknown.
    pub fn skills_directory(&self, workspace: Option<&Path>) -> Option<PathBuf> {
        let base = workspace.or_else(|| self.settings.environment().user_home());
        base.map(|base| base.join(SKILLS_DIR))
    }

    /// Reads and validates the skill in a directory.
    pub fn check_skill(directory: &Path) -> Result<Skill, SkillProblem> {
        let file = directory.join(scan::SKILL_FILE);
        // Resolve `.` and symbolic links, because the skill must have the name of its directory.
        let canonical = directory
            .canonicalize()
            .unwrap_or_else(|_| directory.to_owned());
        let name = canonical.file_name().unwrap_or_default().to_string_lossy();
        let text = SkillText::File(file.clone());
        scan::read_skill_file(&file)
            .and_then(|content| Skill::parse(&content, &name, SkillSource::Project, text))
            .map_err(|reason| SkillProblem { file, reason })
    }

    /// Creates a skill with placeholder text in a skills directory and returns the path of its `SKILL.md`. Fails if the
    /// skill exists.
    pub fn create_skill(
        directory: &Path,
        name: &str,
        description: &str,
    ) -> Result<PathBuf, SkillProblem> {
        let skill_directory = directory.join(name);
        let file = skill_directory.join(scan::SKILL_FILE);
        let text = format!(
            "---\nname: {name}\ndescription: {}\n---\n\n# {name}\n\nDescribe what to do, step by step.\n",
            serde_json::Value::from(description)
        );
        let written = frontmatter::check_name(name, name)
            .and_then(|()| frontmatter::parse(&text, name))
            .and_then(|_| {
                write_new_file(&skill_directory, &file, &text).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        "the file already exists; choose another name or edit the file".to_owned()
                    }
                    _ => error.to_string(),
                })
            });
        match written {
            Ok(()) => Ok(file),
            Err(reason) => Err(SkillProblem { file, reason }),
        }
    }
}

fn write_new_file(directory: &Path, file: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    File::create_new(file)?.write_all(text.as_bytes())
}
