//! The skills that are part of bub. Their text is compiled in; they have no directory.

use std::sync::Arc;

use super::{Skill, SkillSource, SkillText};

const ALL: [(&str, &str); 3] = [
    ("gh", include_str!("bundled/gh/SKILL.md")),
    (
        "skill-creator",
        include_str!("bundled/skill-creator/SKILL.md"),
    ),
    ("telegram", include_str!("bundled/telegram/SKILL.md")),
];

/// The skills that are loaded without a request: a message of a channel loads the skill of the same name.
pub(super) const CHANNEL_SKILLS: [&str; 1] = ["telegram"];

pub(super) fn bundled_skills() -> Vec<Arc<Skill>> {
    let parse = |(name, content)| {
        let text = SkillText::Builtin(content);
        let skill = Skill::parse(content, name, SkillSource::Builtin, text);
        skill.ok().map(Arc::new)
    };
    ALL.into_iter().filter_map(parse).collect()
}
