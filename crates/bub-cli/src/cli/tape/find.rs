//! Finds a tape by session id, tape name or prefix.

use bub_tape::{Result, SessionInfo, TapeError, TapeListFilter, TapeName};

use super::{
    text,
    workspace_tapes::{ListedTape, WorkspaceTapes},
};

/// Maximum number of candidates in an error.
const MAX_CANDIDATES: usize = 10;

impl WorkspaceTapes {
    /// Finds a tape: a session of this workspace, a tape name, a session of another workspace, or a unique prefix of
    /// either. A prefix match in this workspace wins over matches in other workspaces.
    pub(super) async fn find_tape(&self, requested: &str) -> Result<ListedTape> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let as_session = TapeName::for_session(&self.workspace, requested);
        // Exact names need no summaries, so that the index is not read for every tape.
        if let Some(name) = names
            .iter()
            .find(|name| **name == as_session || name.as_str() == requested)
        {
            let mut summary = self.store.summary(name).await?;
            if *name == as_session {
                // Tapes of the Python version do not record their session; use the id that the user typed.
                let workspace = Some(self.workspace.clone());
                summary.session.get_or_insert(SessionInfo {
                    workspace,
                    ..SessionInfo::new(requested)
                });
            }
            return Ok(ListedTape {
                name: name.clone(),
                summary,
            });
        }
        let all = self.sessions().await?;
        let is_named = |listed: &&ListedTape| listed.label() == requested;
        let has_prefix = |listed: &&ListedTape| {
            !requested.is_empty()
                && (listed.label().starts_with(requested)
                    || listed.name.as_str().starts_with(requested))
        };
        let has_prefix_here =
            |listed: &&ListedTape| has_prefix(listed) && self.is_in_workspace(&listed.name);
        for candidates in [
            all.iter().filter(is_named).collect::<Vec<_>>(),
            all.iter().filter(has_prefix_here).collect(),
            all.iter().filter(has_prefix).collect(),
        ] {
            match candidates.as_slice() {
                [] => {}
                [only] => return Ok((*only).clone()),
                several => return Err(self.ambiguous_error(requested, several)),
            }
        }
        Err(not_found_error(requested))
    }

    fn ambiguous_error(&self, requested: &str, candidates: &[&ListedTape]) -> TapeError {
        let mut shown: Vec<_> = candidates
            .iter()
            .take(MAX_CANDIDATES)
            .map(|listed| self.distinct_label(listed))
            .collect();
        if candidates.len() > MAX_CANDIDATES {
            shown.push("…".to_owned());
        }
        let (count, requested, shown) = (
            candidates.len(),
            text::sanitize_line(requested),
            shown.join(", "),
        );
        TapeError::InvalidInput(format!(
            "ambiguous tape `{requested}`: {count} tapes match: {shown}; type more of the name"
        ))
    }

    /// Returns a name that identifies the tape uniquely.
    fn distinct_label(&self, listed: &ListedTape) -> String {
        let is_here = TapeName::for_session(&self.workspace, listed.label()) == listed.name;
        if is_here {
            text::sanitize_line(listed.label())
        } else {
            listed.name.to_string()
        }
    }
}

/// Returns the error for an unknown tape. For a path, it explains that tape names are not paths.
fn not_found_error(requested: &str) -> TapeError {
    let requested = text::sanitize_line(requested);
    if requested.contains(['/', '\\']) {
        return TapeError::InvalidInput(format!(
            "invalid tape name {requested:?}: it contains a path separator, and no session has this id; see `bub tape list`"
        ));
    }
    TapeError::NotFound(format!(
        "session or tape `{requested}` not found; see `bub tape list` or `bub tape list --all-workspaces`"
    ))
}
