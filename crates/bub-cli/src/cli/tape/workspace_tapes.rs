//! The tapes that a command works on, with their summaries. Finds a tape by session id, tape name or prefix.

use std::{cmp::Reverse, collections::HashMap, path::PathBuf, process::ExitCode, sync::Arc};

use bub_kernel::Framework;
use bub_kernel::settings::file_store;
use bub_settings::Settings;
use bub_tape::{
    FileStore, MissingTape, Result, SessionInfo, Tape, TapeError, TapeListFilter, TapeName,
    TapeStore, TapeSummary,
};

use super::{text, writer::ResultWriter};
use crate::cli::{
    listing::{Listing, Table},
    progress::ProgressBar,
};

/// Maximum number of matching tapes that an error lists.
const MAX_CANDIDATES: usize = 10;

/// The tape store of the running program and the current workspace.
pub(super) struct WorkspaceTapes {
    pub(super) store: Arc<dyn TapeStore>,
    pub(super) workspace: String,
    pub(super) settings: Arc<Settings>,
}

/// The tape files of the home and the current workspace.
pub(super) struct HomeTapes {
    pub(super) store: FileStore,
    pub(super) directory: PathBuf,
    pub(super) tapes: WorkspaceTapes,
}

/// A tape and its summary.
#[derive(Debug, Clone)]
pub(super) struct ListedTape {
    pub(super) name: TapeName,
    pub(super) summary: TapeSummary,
}

/// A tape that the user named.
enum FoundTape {
    Listed(Box<ListedTape>),
    /// The file of the tape was removed.
    Missing(TapeName),
}

/// The tapes that the user named.
pub(super) struct NamedTapes {
    /// The tapes, each followed by its sidecars.
    pub(super) names: Vec<TapeName>,
    /// The tapes whose files were removed, each with the text that the user typed.
    pub(super) missing: Vec<(String, TapeName)>,
}

impl WorkspaceTapes {
    /// Opens the tape store that a plugin provides. Works only inside [`Framework::run_scoped`].
    pub(super) fn open(
        framework: &Framework,
        settings: &Arc<Settings>,
    ) -> bub_kernel::Result<Self> {
        let store = super::super::tape_store(framework)?;
        Ok(Self::new(store, framework, settings))
    }

    fn new(store: Arc<dyn TapeStore>, framework: &Framework, settings: &Arc<Settings>) -> Self {
        Self {
            store,
            workspace: framework.workspace_text().to_owned(),
            settings: Arc::clone(settings),
        }
    }

    /// Prints a result to stdout.
    pub(super) fn print(&self, text: &str) -> Result<ExitCode> {
        let mut out = ResultWriter::for_stdout(&self.settings);
        out.write(text)?;
        out.finish()?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints a table to stdout.
    pub(super) fn print_table(&self, table: Table) -> Result<ExitCode> {
        let printed = Listing::from(table).print(&self.settings);
        printed.map_err(|error| TapeError::InvalidInput(error.message().to_owned()))
    }

    /// Returns the sessions of this workspace or of all workspaces, newest first. Prints a note for each tape that
    /// cannot be read and skips it.
    pub(super) async fn sessions(&self, all_workspaces: bool) -> Result<Vec<ListedTape>> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let progress = ProgressBar::new("reading", names.len(), &self.settings);
        let mut listed = Vec::new();
        for name in names {
            progress.advance(name.as_str());
            match self.store.summary(&name).await {
                Ok(summary) => listed.push(ListedTape { name, summary }),
                Err(error) => notice!("skipped: {error}"),
            }
        }
        listed.retain(|listed| all_workspaces || self.is_in_workspace(&listed.name));
        listed.sort_by_cached_key(|listed| Reverse(listed.last_activity()));
        Ok(listed)
    }

    /// Returns whether a tape belongs to this workspace. The name decides, because old tapes record no workspace.
    pub(super) fn is_in_workspace(&self, name: &TapeName) -> bool {
        let here = TapeName::for_session(&self.workspace, "");
        let [here, hash] = [&here, name].map(|name| name.as_str().split_once("__"));
        here.map(|(hash, _)| hash) == hash.map(|(hash, _)| hash)
    }

    pub(super) fn open_tape(&self, name: &TapeName) -> Tape {
        Tape::new(Arc::clone(&self.store), name.clone())
    }

    /// Finds a tape: a session of this workspace, a tape name, a session of another workspace, or a unique prefix of a
    /// session id or tape name. A prefix match in this workspace wins over matches in other workspaces.
    ///
    /// # Errors
    ///
    /// Fails if there is no such tape, or if its file was removed.
    pub(super) async fn find_tape(&self, requested: &str) -> Result<ListedTape> {
        match self.look_up(requested).await? {
            FoundTape::Listed(listed) => Ok(*listed),
            FoundTape::Missing(_) => Err(missing_error(requested)),
        }
    }

    /// Finds a tape as [`Self::find_tape`] does. A session id or tape name of a tape whose file was removed is not a
    /// prefix of another one: the user means the removed tape.
    async fn look_up(&self, requested: &str) -> Result<FoundTape> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let as_session = TapeName::for_session(&self.workspace, requested);
        // Compare exact names first: this needs no summaries, and reading the summaries of all tapes takes longer.
        let is_exact = |name: &TapeName| *name == as_session || name.as_str() == requested;
        if let Some(name) = names.into_iter().find(is_exact) {
            let mut summary = self.store.summary(&name).await?;
            if name == as_session {
                // Tapes of the Python version do not record their session; use the id that the user typed.
                summary.session.get_or_insert(SessionInfo {
                    workspace: Some(self.workspace.clone()),
                    ..SessionInfo::new(requested)
                });
            }
            return Ok(FoundTape::Listed(Box::new(ListedTape { name, summary })));
        }
        let missing = file_store(&self.settings).missing_tapes().await?;
        if let Some(missing) = missing.iter().find(|missing| is_exact(&missing.name)) {
            return Ok(FoundTape::Missing(missing.name.clone()));
        }
        let all = self.sessions(true).await?;
        let is_named = |listed: &&ListedTape| listed.label() == requested;
        let has_prefix = |listed: &&ListedTape| {
            !requested.is_empty()
                && (listed.label().starts_with(requested)
                    || listed.name.as_str().starts_with(requested))
        };
        let has_prefix_here =
            |listed: &&ListedTape| has_prefix(listed) && self.is_in_workspace(&listed.name);
        let has_session_id = |missing: &&MissingTape| missing.name.is_of_session(requested);
        if !all.iter().any(|listed| is_named(&listed))
            && let Some(missing) = missing.iter().find(has_session_id)
        {
            return Ok(FoundTape::Missing(missing.name.clone()));
        }
        for candidates in [
            all.iter().filter(is_named).collect::<Vec<_>>(),
            all.iter().filter(has_prefix_here).collect(),
            all.iter().filter(has_prefix).collect(),
        ] {
            match candidates.as_slice() {
                [] => {}
                [only] => return Ok(FoundTape::Listed(Box::new((*only).clone()))),
                several => return Err(self.ambiguous_error(requested, several)),
            }
        }
        Err(not_found_error(requested))
    }

    fn ambiguous_error(&self, requested: &str, candidates: &[&ListedTape]) -> TapeError {
        let labels = candidates.iter().map(|listed| self.distinct_label(listed));
        let mut shown: Vec<_> = labels.take(MAX_CANDIDATES).collect();
        if candidates.len() > MAX_CANDIDATES {
            shown.push("…".to_owned());
        }
        TapeError::InvalidInput(format!(
            "ambiguous tape `{}`: {} tapes match: {}; type more of the name",
            text::sanitize_line(requested),
            candidates.len(),
            shown.join(", ")
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

impl HomeTapes {
    pub(super) fn new(framework: &Framework, settings: &Arc<Settings>) -> Self {
        let directory = settings.home().join("tapes");
        let store = file_store(settings);
        Self {
            tapes: WorkspaceTapes::new(Arc::new(store.clone()), framework, settings),
            store,
            directory,
        }
    }

    /// Returns the requested tapes in the given order. If none is requested, returns all tapes of the home, newest
    /// first. Each tape is followed by its sidecars.
    ///
    /// # Errors
    ///
    /// Fails if there is no such tape, or if its file was removed.
    pub(super) async fn resolve_names(&self, requested: &[String]) -> Result<Vec<TapeName>> {
        let NamedTapes { names, missing } = self.look_up_names(requested).await?;
        match missing.first() {
            Some((requested, _)) => Err(missing_error(requested)),
            None => Ok(names),
        }
    }

    /// Returns the requested tapes as [`Self::resolve_names`] does, and those whose files were removed.
    pub(super) async fn look_up_names(&self, requested: &[String]) -> Result<NamedTapes> {
        let store = &self.store;
        let (mut sessions, mut missing) = (Vec::new(), Vec::new());
        for tape in requested {
            match self.tapes.look_up(tape).await? {
                FoundTape::Listed(listed) => sessions.push(*listed),
                FoundTape::Missing(name) => missing.push((tape.clone(), name)),
            }
        }
        if requested.is_empty() {
            for name in store.list(TapeListFilter::Sessions).await? {
                // An unreadable tape is reported when it is processed.
                let summary = store.summary(&name).await.unwrap_or_default();
                sessions.push(ListedTape { name, summary });
            }
            sessions.sort_by_cached_key(|listed| Reverse(listed.last_activity()));
        }
        // List the directory only once, because there may be many sessions.
        let mut sidecars: HashMap<String, Vec<TapeName>> = HashMap::new();
        for sidecar in store.list(TapeListFilter::AllSidecars).await? {
            if let Some((owner, _)) = sidecar.as_sidecar() {
                sidecars.entry(owner.to_owned()).or_default().push(sidecar);
            }
        }
        let mut names = Vec::new();
        for ListedTape { name, .. } in sessions {
            let sidecars = sidecars.remove(name.as_str()).unwrap_or_default();
            names.push(name);
            names.extend(sidecars);
        }
        Ok(NamedTapes { names, missing })
    }
}

impl ListedTape {
    /// Returns the session id, or the tape name if the session is unknown.
    pub(super) fn label(&self) -> &str {
        self.session_id().unwrap_or(self.name.as_str())
    }

    pub(super) fn session_id(&self) -> Option<&str> {
        Some(&self.summary.session.as_ref()?.session_id)
    }

    pub(super) fn workspace(&self) -> Option<&str> {
        self.summary.session.as_ref()?.workspace.as_deref()
    }

    pub(super) fn channel(&self) -> Option<&str> {
        self.summary.session.as_ref()?.channel.as_deref()
    }

    /// Returns the time of the last entry, for sorting. An empty tape has the smallest value.
    fn last_activity(&self) -> impl Ord + use<> {
        text::parse_sort_time(self.summary.last_date.as_deref().unwrap_or_default())
    }
}

/// Returns the error for a tape whose file was removed.
fn missing_error(requested: &str) -> TapeError {
    TapeError::NotFound(format!(
        "the tape of `{}` is missing: it had entries, and its file was removed",
        text::sanitize_line(requested)
    ))
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
