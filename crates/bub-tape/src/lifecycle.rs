//! Resets and archives a tape and its sidecars.

use serde_json::json;

use crate::{
    Entry, ResetReport, ResetRequest, Result, SESSION_START, SessionInfo, Tape, entry::json_object,
    tape::handoff_entries, time,
};

impl Tape {
    /// Clears the tape and its sidecars, optionally keeping archives. The tape then starts with a new `session/start`
    /// anchor, which keeps the session information. A sidecar whose archive cannot be written is not cleared.
    pub async fn reset(&self, archive: bool) -> Result<ResetReport> {
        let stamp = archive.then(time::archive_stamp);
        let session = self.summary().await?.session;
        let initial_entries =
            move |archived: Option<&str>| session_start_entries(session.as_ref(), archived);
        let request = ResetRequest {
            archive: stamp.clone(),
            initial_entries: Box::new(initial_entries),
        };
        let outcome = self.store().reset(self.name(), request).await?;
        for sidecar in self.sidecars() {
            self.reset_sidecar_tape(&sidecar.name, "tape.reset", stamp.as_deref())
                .await?;
        }
        Ok(ResetReport {
            archived: outcome.archived,
        })
    }

    /// Archives a sidecar and returns the name of the archive. Appends an event with `reason` to the tape, also if
    /// archiving fails. The archive command of the Python version uses the reason `manual`.
    pub async fn archive_sidecar(&self, name: &str, reason: &str) -> Result<String> {
        let tape = self.sidecar(name)?;
        let stamp = time::archive_stamp();
        let archived = self.store().archive(tape.name(), &stamp).await;
        let outcome = archived.as_ref().map(Some);
        self.append(sidecar_event("sidecar.archive", name, reason, outcome))
            .await?;
        archived
    }

    /// Clears a sidecar, optionally keeping an archive. Appends events with `reason` to the tape. The Python version
    /// uses the reason `gc`.
    pub async fn reset_sidecar(&self, name: &str, reason: &str, archive: bool) -> Result<()> {
        let stamp = archive.then(time::archive_stamp);
        self.sidecar(name)?;
        self.reset_sidecar_tape(name, reason, stamp.as_deref())
            .await
    }

    async fn reset_sidecar_tape(
        &self,
        name: &str,
        reason: &str,
        stamp: Option<&str>,
    ) -> Result<()> {
        let tape = self.name().sidecar(name)?;
        let mut events = Vec::new();
        let mut is_archived = true;
        if let Some(stamp) = stamp {
            let archived = self.store().archive(&tape, stamp).await;
            is_archived = archived.is_ok();
            let outcome = archived.as_ref().map(Some);
            events.push(sidecar_event("sidecar.archive", name, reason, outcome));
        }
        events.push(if is_archived {
            let reset = self.store().reset(&tape, ResetRequest::empty(None)).await;
            sidecar_event("sidecar.reset", name, reason, reset.map(|_| None))
        } else {
            let data = json!({"sidecar": name, "status": "skipped", "reason": reason, "cause": "archive_failed"});
            Entry::event("sidecar.reset", Some(data)).exclude_from_context()
        });
        self.append_all(events).await.map(drop)
    }
}

fn session_start_entries(session: Option<&SessionInfo>, archived: Option<&str>) -> Vec<Entry> {
    let mut state = json_object([("owner", "human".into())]);
    state.extend(archived.map(|path| ("archived".to_owned(), path.into())));
    let meta = session.map(SessionInfo::to_map).unwrap_or_default();
    handoff_entries(SESSION_START, Some(state.into()), meta)
}

fn sidecar_event<E: ToString>(
    event: &str,
    name: &str,
    reason: &str,
    outcome: Result<Option<&String>, E>,
) -> Entry {
    let (status, detail) = match outcome {
        Ok(path) => ("ok", path.map(|path| ("archive", path.clone()))),
        Err(error) => ("error", Some(("error", error.to_string()))),
    };
    let mut data = json_object([
        ("sidecar", name.into()),
        ("status", status.into()),
        ("reason", reason.into()),
    ]);
    data.extend(detail.map(|(key, text)| (key.to_owned(), text.into())));
    Entry::event(event, Some(data.into())).exclude_from_context()
}
