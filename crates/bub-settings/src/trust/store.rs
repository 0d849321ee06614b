//! The file `trust.json` in bub's home: what the user trusted or declined to trust.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{TrustItemKind, TrustReport, WorkspaceTrust, digest::DigestReader};
use crate::{EditError, SettingsError, edit, files};

/// A decision of the user about a workspace.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrustRecord {
    /// The workspace, without symbolic links.
    pub workspace: PathBuf,
    /// Whether the user trusts the items. `false`: the user declined, and is not asked about this content again.
    #[serde(rename = "trusted")]
    pub is_trusted: bool,
    /// What the decision is about.
    pub items: Vec<TrustedItem>,
}

/// A file or directory in a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrustedItem {
    /// What it changes.
    pub kind: TrustItemKind,
    /// The path without symbolic links.
    pub path: PathBuf,
    /// SHA-256 of the content.
    pub sha256: String,
}

/// The content of `trust.json`.
#[derive(Default, Serialize, Deserialize)]
struct TrustFile {
    workspaces: Vec<TrustRecord>,
}

impl TrustRecord {
    fn new(report: &TrustReport, is_trusted: bool) -> Self {
        let items = report.items.iter().filter_map(|item| {
            Some(TrustedItem {
                kind: item.kind,
                path: item.path.clone(),
                sha256: item.digest.clone().ok()?,
            })
        });
        Self {
            workspace: report.workspace.clone(),
            is_trusted,
            items: items.collect(),
        }
    }

    /// Returns whether the user declined to trust exactly the content in a report.
    pub(super) fn declines(&self, report: &TrustReport) -> bool {
        !self.is_trusted
            && self.workspace == report.workspace
            && self.items == Self::new(report, false).items
    }

    /// Returns whether all items still have the content of the decision.
    pub fn is_current(&self) -> bool {
        let mut reader = DigestReader::default();
        self.items.iter().all(|item| {
            let read = reader.read_item(item.kind, item.path.clone());
            read.and_then(|read| read.digest.ok()).as_ref() == Some(&item.sha256)
        })
    }
}

/// Returns whether a decision trusts this content.
pub(super) fn is_trusted(
    records: &[TrustRecord],
    path: &Path,
    digest: &Result<String, String>,
) -> bool {
    let trusted = records.iter().filter(|record| record.is_trusted);
    let mut items = trusted.flat_map(|record| &record.items);
    items.any(|item| item.path == path && Ok(&item.sha256) == digest.as_ref())
}

impl WorkspaceTrust {
    /// Returns all decisions.
    pub fn records(&self) -> Result<Vec<TrustRecord>, SettingsError> {
        self.file().map_or(Ok(Vec::new()), read_records)
    }

    /// Stores the user's decision about the content in a report, and applies it to the report. It replaces an earlier
    /// decision about the workspace.
    pub fn remember(&self, report: &mut TrustReport, is_trusted: bool) -> Result<(), EditError> {
        self.update(|records| {
            records.retain(|record| record.workspace != report.workspace);
            records.push(TrustRecord::new(report, is_trusted));
        })?;
        report.apply(&self.records()?);
        Ok(())
    }

    /// Removes the decision about a workspace. Returns whether one was stored.
    pub fn forget(&self, workspace: &Path) -> Result<bool, EditError> {
        let mut is_found = false;
        self.update(|records| {
            let count = records.len();
            records.retain(|record| record.workspace != workspace);
            is_found = records.len() < count;
        })?;
        Ok(is_found)
    }

    fn update(&self, change: impl FnOnce(&mut Vec<TrustRecord>)) -> Result<(), EditError> {
        let file = self.file().ok_or(SettingsError::NoHome)?;
        let unwritable = |source| EditError::Unwritable {
            file: file.to_owned(),
            source,
        };
        let lock = edit::lock_directory(file).map_err(unwritable)?;
        let mut workspaces = read_records(file)?;
        change(&mut workspaces);
        // Declined workspaces that were removed would fill the file.
        workspaces.retain(|record| record.is_trusted || record.workspace.is_dir());
        let text = serde_json::to_string_pretty(&TrustFile { workspaces });
        let text = text.map_err(|error| unwritable(error.into()))?;
        edit::write_atomically(file, &text)
            .and_then(|()| lock.sync_all())
            .map_err(unwritable)
    }
}

fn read_records(file: &Path) -> Result<Vec<TrustRecord>, SettingsError> {
    let Some(text) = files::read_own_file(file)? else {
        return Ok(Vec::new());
    };
    let parsed = serde_json::from_str::<TrustFile>(&text);
    parsed
        .map(|parsed| parsed.workspaces)
        .map_err(|error| SettingsError::Unreadable {
            file: file.to_owned(),
            source: error.into(),
        })
}
