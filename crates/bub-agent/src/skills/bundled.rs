//! The skills that are part of bub. Their text is compiled in; they have no directory.

use std::sync::Arc;

use super::{Skill, SkillSource, SkillText, frontmatter};

const ALL: [(&str, &str); 3] = [
    ("gh", include_str!("bundled/gh/SKILL.md")),
    (
        "skill-creator",
        include_str!("bundled/skill-creator/SKILL.md"),
    ),
    ("telegram", include_str!("bundled/telegram/SKILL.md")),
];

pub(super) fn bundled_skills() -> Vec<Arc<Skill>> {
    let read = |(name, text)| {
        let frontmatter = frontmatter::parse(text, name).ok()?;
        let text = SkillText::Builtin(text);
        Some(Arc::new(Skill::new(
            name,
            SkillSource::Builtin,
            frontmatter,
            text,
        )))
    };
    ALL.into_iter().filter_map(read).collect()
}
