//! Starting a new skill, and checking one: what `bub skill` does.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{SKILLS_DIR, Skill, SkillProblem, SkillSource, SkillText, Skills, frontmatter, scan};

impl Skills {
    /// The directory in which a workspace, or else the user, keeps skills.
    pub fn directory(&self, workspace: Option<&Path>) -> Option<PathBuf> {
        let base = workspace.or_else(|| self.settings.environment().user_home());
        base.map(|base| base.join(SKILLS_DIR))
    }

    /// Reads the skill in a directory, or says what is wrong with it.
    pub fn check(directory: &Path) -> Result<Skill, SkillProblem> {
        let file = directory.join(scan::SKILL_FILE);
        // `.` and links have the name of what they stand for.
        let full = directory
            .canonicalize()
            .unwrap_or_else(|_| directory.to_owned());
        let name = full.file_name().unwrap_or_default().to_string_lossy();
        let read = scan::read(&file).and_then(|text| frontmatter::read(&text, &name));
        match read {
            Ok(frontmatter) => Ok(Skill::new(
                &name,
                SkillSource::Project,
                frontmatter,
                SkillText::File(file),
            )),
            Err(reason) => Err(SkillProblem { file, reason }),
        }
    }

    /// Writes the beginnings of a skill into a directory of skills. An existing one is never touched.
    pub fn create(
        directory: &Path,
        name: &str,
        description: &str,
    ) -> Result<PathBuf, SkillProblem> {
        let home = directory.join(name);
        let file = home.join(scan::SKILL_FILE);
        let text = format!(
            "---\nname: {name}\ndescription: {}\n---\n\n# {name}\n\nSay here what to do, step by step.\n",
            serde_json::Value::from(description)
        );
        let written = frontmatter::check_name(name, name)
            .and_then(|()| frontmatter::read(&text, name))
            .and_then(|_| {
                write_new(&home, &file, &text).map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => "there is one already".to_owned(),
                    _ => error.to_string(),
                })
            });
        match written {
            Ok(()) => Ok(file),
            Err(reason) => Err(SkillProblem { file, reason }),
        }
    }
}

fn write_new(directory: &Path, file: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    File::create_new(file)?.write_all(text.as_bytes())
}
