//! Workspaces that contain private files of the owner.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use bub_settings::Settings;

/// Why a workspace contains private files. In such a workspace, only owners can use files and commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkspaceExposure {
    /// The workspace is the user's home directory, or contains it.
    UserHome,
    /// The workspace contains bub's home.
    BubHome,
}

impl WorkspaceExposure {
    /// Checks a workspace.
    pub fn find(settings: &Settings, workspace: &Path) -> Option<Self> {
        let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| PathBuf::from(path));
        let workspace = resolve(workspace);
        let contains = |path: &Path| resolve(path).starts_with(&workspace);
        match settings.environment().user_home() {
            Some(home) if contains(home) => Some(Self::UserHome),
            _ => contains(settings.home()).then_some(Self::BubHome),
        }
    }
}

impl fmt::Display for WorkspaceExposure {
    // The text contains no path, because it is also shown to users who must not know the path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = match self {
            Self::UserHome => "the home directory of the owner",
            Self::BubHome => "bub's own data",
        };
        write!(
            f,
            "the workspace contains {content}, so only owners can use files and commands"
        )
    }
}
