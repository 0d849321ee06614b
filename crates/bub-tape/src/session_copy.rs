//! Creates a session from the entries of another session.

use serde_json::json;

use crate::{
    ChainProblem, Entry, EntryRange, LeaseWait, ResetRequest, Result, SessionInfo, Tape, TapeError,
    TapeListFilter,
};

impl Tape {
    /// Creates `session` on the tape `target` from the first entries of this tape, with its sidecars as they were when
    /// the last of these entries was written. The copy is complete or does not exist.
    ///
    /// # Errors
    ///
    /// Fails if `entries` is empty, if the target has entries, or if the store fails.
    pub async fn copy_to(
        &self,
        target: &Self,
        mut entries: Vec<Entry>,
        session: &SessionInfo,
    ) -> Result<()> {
        let Some(last) = entries.last() else {
            let name = self.name();
            return Err(TapeError::InvalidInput(format!(
                "cannot copy tape `{name}`: no entries to copy; choose another tape"
            )));
        };
        // The lease prevents turns of the new session while it is being created.
        let _lease = target.lease(LeaseWait::No).await?;
        if target.summary().await?.entries > 0 {
            let id = &session.session_id;
            return Err(TapeError::InvalidInput(format!(
                "session `{id}` already exists; choose another id, or see `bub tape show {id}`"
            )));
        }
        // Sidecars first: the new session exists only after its sidecars are complete.
        let mut problems = self.copy_sidecars(target, last).await?;
        let summary = self.summary().await?;
        let is_complete = last.id == summary.max_id;
        let problem = self.store().chain_problem(self.name()).await?;
        let problem = problem.filter(|problem| problem.is_copied(last.id, is_complete));
        problems.extend(problem.map(|problem| (String::new(), problem)));
        let source = summary.session.map(|session| session.session_id);
        let mut data = session.to_map();
        data.insert(
            "forked_from".to_owned(),
            json!({"tape": self.name().as_str(), "session_id": source, "id": last.id}),
        );
        // The copy has a new chain, which must not hide that the old one is broken or not proven.
        entries.extend(ChainProblem::source_event(&problems));
        entries.push(Entry::event("session.info", Some(data.into())).exclude_from_context());
        // One batch, so that the session is created completely or not at all.
        target.store().append(target.name(), entries).await?;
        Ok(())
    }

    /// Copies the sidecars as they were when `last`, the last copied entry, was written. Returns the problems of their
    /// hash chains, each with the text before it.
    async fn copy_sidecars(
        &self,
        target: &Self,
        last: &Entry,
    ) -> Result<Vec<(String, ChainProblem)>> {
        let mut problems = Vec::new();
        let filter = TapeListFilter::Sidecars(self.name().clone());
        for sidecar in self.store().list(filter).await? {
            let Some((_, name)) = sidecar.as_sidecar() else {
                continue;
            };
            let mut entries = Self::new(self.store().clone(), sidecar.clone())
                .entries(EntryRange::ALL)
                .await?;
            entries.retain(|entry| {
                last.timestamp().is_none() || entry.timestamp() <= last.timestamp()
            });
            if entries.is_empty() {
                continue;
            }
            let problem = self.store().chain_problem(&sidecar).await?;
            problems.extend(problem.map(|problem| (format!("sidecar {name}: "), problem)));
            let reset = ResetRequest {
                archive: None,
                initial_entries: Box::new(move |_| entries),
            };
            let copy = target.name().sidecar(name)?;
            target.store().reset(&copy, reset).await?;
        }
        Ok(problems)
    }
}
