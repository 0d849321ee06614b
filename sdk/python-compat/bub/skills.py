"""Skills: directories with a ``SKILL.md``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SKILL_FILE_NAME = "SKILL.md"
PROJECT_SKILLS_DIR = ".agents/skills"


@dataclass(frozen=True)
class SkillMetadata:
    """The head of a skill."""

    name: str
    description: str
    location: Path
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def body(self) -> str:
        """Return the text after the head."""
        return _split(self.location.read_text("utf-8"))[1].strip()


def _split(text: str) -> tuple[str, str]:
    found = re.match(r"---\n(.*?)\n---\n?(.*)", text, re.DOTALL)
    return (found[1], found[2]) if found else ("", text)


def iter_skill_roots(workspace_path: Path) -> list[tuple[Path, str]]:
    """Return the directories with skills that a plugin can see."""
    return [(workspace_path / PROJECT_SKILLS_DIR, "project")]


def discover_skills(workspace_path: Path, *, skill_dirs: Collection[Path] | None = None) -> list[SkillMetadata]:
    """Return the skills of a workspace, or of directories."""
    import yaml

    roots = iter_skill_roots(workspace_path) if skill_dirs is None else [(Path(root), "custom") for root in skill_dirs]
    found: dict[str, SkillMetadata] = {}
    for root, source in roots:
        for file in sorted(root.glob(f"*/{SKILL_FILE_NAME}")):
            try:
                head = yaml.safe_load(_split(file.read_text("utf-8"))[0]) or {}
            except (OSError, ValueError, yaml.YAMLError):
                continue
            name = head.get("name")
            if name == file.parent.name and head.get("description"):
                found.setdefault(name, SkillMetadata(name, str(head["description"]), file, source, head))
    return sorted(found.values(), key=lambda skill: skill.name)
