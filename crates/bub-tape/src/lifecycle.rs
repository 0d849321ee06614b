//! Resets and archives a tape and its sidecars.

use serde_json::{Map, Value, json};

use crate::{
    Entry, ResetReport, ResetRequest, Result, SESSION_START, SessionInfo, Tape, TapeName,
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
            let events = self
                .reset_sidecar_tape(&sidecar.name, "tape.reset", stamp.as_deref())
                .await?;
            self.append_all(events).await?;
        }
        Ok(ResetReport {
            archived: outcome.archived,
        })
    }

    /// Archives a sidecar and records this with an event. The archive command of the Python version uses the reason
    /// `manual`.
    pub async fn archive_sidecar(&self, name: &str, reason: &str) -> Result<String> {
        let tape = self.sidecar(name)?;
        let stamp = time::archive_stamp();
        let archived = self.store().archive(tape.name(), &stamp).await;
        self.append(sidecar_event(
            "sidecar.archive",
            name,
            reason,
            archived.as_ref().map(Some),
        ))
        .await?;
        archived
    }

    /// Clears a sidecar, optionally keeping an archive, and records this with an event. The Python version uses the
    /// reason `gc`.
    pub async fn reset_sidecar(&self, name: &str, reason: &str, archive: bool) -> Result<()> {
        let stamp = archive.then(time::archive_stamp);
        self.sidecar(name)?;
        let events = self
            .reset_sidecar_tape(name, reason, stamp.as_deref())
            .await?;
        self.append_all(events).await?;
        Ok(())
    }

    async fn reset_sidecar_tape(
        &self,
        name: &str,
        reason: &str,
        stamp: Option<&str>,
    ) -> Result<Vec<Entry>> {
        let tape: TapeName = self.name().sidecar(name)?;
        let mut events = Vec::new();
        if let Some(stamp) = stamp {
            let archived = self.store().archive(&tape, stamp).await;
            events.push(sidecar_event(
                "sidecar.archive",
                name,
                reason,
                archived.as_ref().map(Some),
            ));
            if archived.is_err() {
                events.push(sidecar_skipped_event(name, reason));
                return Ok(events);
            }
        }
        let reset = self.store().reset(&tape, ResetRequest::empty(None)).await;
        events.push(sidecar_event(
            "sidecar.reset",
            name,
            reason,
            reset.as_ref().map(|_| None),
        ));
        Ok(events)
    }
}

fn session_start_entries(session: Option<&SessionInfo>, archived: Option<&str>) -> Vec<Entry> {
    let mut state = json!({"owner": "human"});
    if let (Some(state), Some(path)) = (state.as_object_mut(), archived) {
        state.insert("archived".to_owned(), path.into());
    }
    handoff_entries(
        SESSION_START,
        Some(state),
        session.map(SessionInfo::to_map).unwrap_or_default(),
    )
}

fn sidecar_event<E: ToString>(
    event: &str,
    name: &str,
    reason: &str,
    outcome: Result<Option<&String>, E>,
) -> Entry {
    let mut data = Map::new();
    data.insert("sidecar".to_owned(), name.into());
    data.insert(
        "status".to_owned(),
        if outcome.is_ok() { "ok" } else { "error" }.into(),
    );
    data.insert("reason".to_owned(), reason.into());
    match outcome {
        Ok(Some(path)) => {
            data.insert("archive".to_owned(), path.as_str().into());
        }
        Ok(None) => {}
        Err(error) => {
            data.insert("error".to_owned(), error.to_string().into());
        }
    }
    Entry::event(event, Some(Value::Object(data))).exclude_from_context()
}

fn sidecar_skipped_event(name: &str, reason: &str) -> Entry {
    let data =
        json!({"sidecar": name, "status": "skipped", "reason": reason, "cause": "archive_failed"});
    Entry::event("sidecar.reset", Some(data)).exclude_from_context()
}
