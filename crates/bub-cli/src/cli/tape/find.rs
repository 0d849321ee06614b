//! Finding a tape by what a person typed.

use bub_tape::{Result, SessionInfo, TapeError, TapeListFilter, TapeName};

use super::{
    context::{ListedTape, WorkspaceTapes},
    text,
};

/// How many candidates an error lists.
const MAX_CANDIDATES: usize = 10;

impl WorkspaceTapes {
    /// The tape that is meant: a session of this workspace, a tape name, a session of another workspace, or the only
    /// one that begins like it, here before elsewhere.
    pub(super) async fn find(&self, given: &str) -> Result<ListedTape> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let as_session = TapeName::for_session(&self.workspace, given);
        // Names alone answer most questions; reading every index does not have to happen.
        if let Some(name) = names
            .iter()
            .find(|name| **name == as_session || name.as_str() == given)
        {
            let mut summary = self.store.summary(name).await?;
            if *name == as_session {
                // Tapes of the original do not say whose they are; whoever asked knew.
                let workspace = Some(self.workspace.clone());
                summary.session.get_or_insert(SessionInfo {
                    workspace,
                    ..SessionInfo::new(given)
                });
            }
            return Ok(ListedTape {
                name: name.clone(),
                summary,
            });
        }
        let all = self.sessions().await?;
        let is_named = |listed: &&ListedTape| listed.label() == given;
        let begins = |listed: &&ListedTape| {
            !given.is_empty()
                && (listed.label().starts_with(given) || listed.name.as_str().starts_with(given))
        };
        let begins_here = |listed: &&ListedTape| begins(listed) && self.is_here(&listed.name);
        for candidates in [
            all.iter().filter(is_named).collect::<Vec<_>>(),
            all.iter().filter(begins_here).collect(),
            all.iter().filter(begins).collect(),
        ] {
            match candidates.as_slice() {
                [] => {}
                [only] => return Ok((*only).clone()),
                several => return Err(self.ambiguous(given, several)),
            }
        }
        Err(unknown(given))
    }

    fn ambiguous(&self, given: &str, candidates: &[&ListedTape]) -> TapeError {
        let mut shown: Vec<_> = candidates
            .iter()
            .take(MAX_CANDIDATES)
            .map(|listed| self.distinct_label(listed))
            .collect();
        if candidates.len() > MAX_CANDIDATES {
            shown.push("…".to_owned());
        }
        let (count, given, shown) = (candidates.len(), text::line(given), shown.join(", "));
        TapeError::InvalidInput(format!(
            "`{given}` may be any of {count} tapes: {shown}; type more of the name"
        ))
    }

    /// A name that can be typed to mean this tape and no other.
    fn distinct_label(&self, listed: &ListedTape) -> String {
        let own = TapeName::for_session(&self.workspace, listed.label()) == listed.name;
        if own {
            text::line(listed.label())
        } else {
            listed.name.to_string()
        }
    }
}

/// Nothing is called that. Whoever typed a path learns that tapes are not named by one.
fn unknown(given: &str) -> TapeError {
    let given = text::line(given);
    if given.contains(['/', '\\']) {
        let complaint = format!(
            "Invalid tape name {given:?}: it contains a path separator, and no session is called so"
        );
        return TapeError::InvalidInput(format!("{complaint}; see `bub tape list`"));
    }
    TapeError::NotFound(format!(
        "there is no session or tape `{given}`; see `bub tape list`, or `bub tape list --all-workspaces`"
    ))
}
