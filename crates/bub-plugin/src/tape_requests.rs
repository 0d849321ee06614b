//! Answers the requests of an external plugin about tapes.

use bub_kernel::{Error, Result, SessionId, tape_error};
use bub_tape::{
    Entry, EntryKind, MergeBack, Query, Search, Tape, TapeListFilter, TapeName, codec as tape_codec,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::callbacks::{CallContext, parse_params};

/// Maximum number of entries that one `tape/query` returns.
const MAX_ENTRIES: usize = 1000;
/// Number of entries or anchors that a request returns if it does not say how many.
const DEFAULT_ENTRIES: usize = 100;

/// The parameters of all requests about tapes. A request reads those that it needs.
#[derive(Deserialize)]
struct TapeParams {
    session_id: Option<SessionId>,
    fork: Option<String>,
    name: Option<String>,
    data: Option<Value>,
    state: Option<Value>,
    archive: Option<bool>,
    text: Option<String>,
    kinds: Option<Vec<String>>,
    last_anchor: Option<bool>,
    after_anchor: Option<String>,
    between_anchors: Option<(String, String)>,
    since: Option<String>,
    until: Option<String>,
    newest_first: Option<bool>,
    offset: Option<usize>,
    limit: Option<usize>,
}

impl TapeParams {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_ENTRIES).min(MAX_ENTRIES)
    }

    fn query(&self) -> Query {
        let mut query = Query::new();
        if let Some(text) = &self.text {
            query = query.text(text);
        }
        if let Some(kinds) = &self.kinds {
            query = query.kinds(kinds.iter().map(|kind| EntryKind::from(kind.as_str())));
        }
        if self.last_anchor == Some(true) {
            query = query.after_last_anchor();
        }
        if let Some(name) = &self.after_anchor {
            query = query.after_anchor(name);
        }
        if let Some((start, end)) = &self.between_anchors {
            query = query.between_anchors(start, end);
        }
        if let Some(start) = &self.since {
            query = query.since(start);
        }
        if let Some(end) = &self.until {
            query = query.until(end);
        }
        if self.newest_first == Some(true) {
            query = query.newest_first();
        }
        query
    }
}

/// Answers a request whose method starts with `tape/`.
pub(crate) async fn answer(context: &CallContext, method: &str, params: &Value) -> Result<Value> {
    let params: TapeParams = parse_params(params)?;
    let forks = &context.plugin.forks;
    if let "tape/merge" | "tape/discard" = method {
        let fork = forks
            .lock()
            .remove(params.fork.as_deref().unwrap_or_default());
        let fork = fork.ok_or_else(unknown_fork_error)?;
        if method == "tape/discard" {
            fork.discard().await.map_err(tape_error)?;
        } else {
            fork.merge().await.map_err(tape_error)?;
        }
        return Ok(json!({}));
    }
    let tape = match &params.fork {
        Some(id) => forks.lock().get(id).map(|fork| fork.tape().clone()),
        None => Some(resolve_tape(context, params.session_id.as_ref())?),
    };
    let tape = tape.ok_or_else(unknown_fork_error)?;
    match method {
        "tape/query" => query_tape(&tape, &params).await,
        "tape/search" => search_tape(&tape, &params).await,
        "tape/append" => append_event(context, &tape, params).await,
        "tape/info" => {
            let info = tape.info().await?;
            Ok(json!({
                "name": tape.name().to_string(),
                "entries": info.entries,
                "anchors": info.anchors,
                "last_anchor": info.last_anchor,
                "entries_since_last_anchor": info.entries_since_last_anchor,
                "last_token_usage": info.last_token_usage,
                "last_token_cache_hit_rate": info.cache_hit_rate,
            }))
        }
        "tape/anchors" => {
            let anchors = tape.anchors(params.limit()).await?;
            let anchor = |entry: &Entry| {
                let field = |name: &str| entry.payload.get(name).cloned().unwrap_or_default();
                json!({"id": entry.id.get(), "name": field("name"), "state": field("state")})
            };
            Ok(json!({"anchors": anchors.iter().map(anchor).collect::<Vec<_>>()}))
        }
        "tape/handoff" => {
            check_exists(context, &tape, &params).await?;
            let name = params.name.as_deref().unwrap_or("handoff");
            let id = tape.handoff(name, params.state).await?;
            Ok(json!({"id": id.get()}))
        }
        "tape/reset" => {
            let report = tape.reset(params.archive.unwrap_or_default()).await;
            let report = report.map_err(tape_error)?;
            let message = report
                .archived
                .map_or_else(|| "ok".to_owned(), |path| format!("Archived: {path}"));
            Ok(json!({"message": message}))
        }
        "tape/list" => {
            let tapes = tape.store().list(TapeListFilter::Sessions).await?;
            let tapes: Vec<_> = tapes.iter().map(ToString::to_string).collect();
            Ok(json!({"tapes": tapes}))
        }
        "tape/fork" => {
            let fork = tape.fork(MergeBack::No).await?;
            let id = fork.id().to_owned();
            forks.lock().insert(id.clone(), fork);
            Ok(json!({"fork": id}))
        }
        _ => Err(Error::not_found(format!("unknown method `{method}`"))),
    }
}

fn unknown_fork_error() -> Error {
    Error::not_found("unknown `fork`: it was merged or discarded, or the plugin was restarted")
}

/// Returns the tape of a session. Without `session_id`, returns the tape of the turn in `context`, which may be in
/// memory only.
///
/// The tape of another session has no [`TapeContext`](bub_tape::TapeContext) and no sidecars. Creating them would call
/// plugins, possibly the plugin that waits for this response.
fn resolve_tape(context: &CallContext, session_id: Option<&SessionId>) -> Result<Tape> {
    let other_session = session_id.filter(|session_id| !context.is_turn_session(session_id));
    if let (None, Some(turn)) = (other_session, &context.turn) {
        return Ok(turn.tape().tape().clone());
    }
    let session_id = other_session.ok_or_else(|| {
        Error::invalid_input("missing `session_id`: it is required outside a turn")
    })?;
    let framework = context.plugin.framework()?;
    let no_store = "cannot open the tape: no tape store is open; send the request while bub runs";
    let store = framework.tape_store();
    let store = store.ok_or_else(|| Error::unknown(no_store))?;
    let name = TapeName::for_session(framework.workspace_text(), session_id);
    Ok(Tape::new(store, name))
}

fn encode_entries(entries: &[Entry]) -> Vec<Value> {
    let encode =
        |entry: &Entry| serde_json::from_str(&tape_codec::encode(entry)).unwrap_or_default();
    entries.iter().map(encode).collect()
}

async fn query_tape(tape: &Tape, params: &TapeParams) -> Result<Value> {
    let (offset, limit) = (params.offset.unwrap_or_default(), params.limit());
    let query = params.query().limit(offset.saturating_add(limit));
    let entries = tape.query_all(query).await?;
    let entries = entries.get(offset..).unwrap_or_default();
    Ok(json!({"entries": encode_entries(entries)}))
}

/// Searches like the tool `tape.search`: similar words match too.
async fn search_tape(tape: &Tape, params: &TapeParams) -> Result<Value> {
    let text = params.text.clone().unwrap_or_default();
    let filter = Query {
        text: None,
        ..params.query()
    };
    let search = Search::new(text).within(filter).limit(params.limit());
    let found = tape.search(&search).await?;
    let entries: Vec<Entry> = found.hits.into_iter().map(|hit| hit.entry).collect();
    Ok(json!({"entries": encode_entries(&entries)}))
}

/// Appends an event to a tape. A plugin can append only events and anchors, so that it cannot forge messages.
async fn append_event(context: &CallContext, tape: &Tape, params: TapeParams) -> Result<Value> {
    let name = params.name.as_deref();
    let name = name.ok_or_else(|| Error::invalid_input("`name` is missing"))?;
    if name.is_empty() {
        let text = "invalid `name`: the name of an event must not be empty";
        return Err(Error::invalid_input(text));
    }
    check_exists(context, tape, &params).await?;
    let entry = Entry::event(name, params.data).with_meta("plugin", context.plugin.name());
    let id = tape.append(entry).await?;
    Ok(json!({"id": id.get()}))
}

/// Fails if the tape of another session does not exist.
async fn check_exists(context: &CallContext, tape: &Tape, params: &TapeParams) -> Result<()> {
    if params.fork.is_none()
        && let Some(session_id) = &params.session_id
        && !context.is_turn_session(session_id)
        && tape.info().await?.entries == 0
    {
        return Err(Error::not_found(format!(
            "session `{session_id}` not found: its tape has no entries"
        )));
    }
    Ok(())
}
