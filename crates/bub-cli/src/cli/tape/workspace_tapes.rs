//! The tapes that a command works on, with their summaries.

use std::{cmp::Reverse, collections::HashMap, path::PathBuf, sync::Arc};

use bub_kernel::settings::TAPE_DURABILITY;
use bub_kernel::{Error, Framework};
use bub_settings::Settings;
use bub_tape::{FileStore, Result, Tape, TapeListFilter, TapeName, TapeStore, TapeSummary};

use super::progress::ProgressLine;

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

impl WorkspaceTapes {
    /// Opens the tape store that plugins provide. Works only inside a running scope.
    pub(super) fn open(
        framework: &Framework,
        settings: &Arc<Settings>,
    ) -> bub_kernel::Result<Self> {
        let store = framework.tape_store().ok_or_else(|| {
            Error::config("no tape store: no plugin provides one; see `bub hooks`")
        })?;
        Ok(Self {
            store,
            workspace: framework.workspace_text().to_owned(),
            settings: Arc::clone(settings),
        })
    }

    /// Returns all sessions, newest first. Prints a note for each tape that cannot be read and skips it.
    pub(super) async fn sessions(&self) -> Result<Vec<ListedTape>> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let mut progress = ProgressLine::delayed("reading", names.len());
        let mut listed = Vec::new();
        for name in names {
            progress.advance(name.as_str());
            match self.store.summary(&name).await {
                Ok(summary) => listed.push(ListedTape { name, summary }),
                Err(error) => super::print_note(&format!("skipped: {error}")),
            }
        }
        listed.sort_by_cached_key(|listed| Reverse(listed.last_activity()));
        Ok(listed)
    }

    /// Returns the sessions of this workspace, newest first.
    pub(super) async fn workspace_sessions(&self) -> Result<Vec<ListedTape>> {
        let mut listed = self.sessions().await?;
        listed.retain(|listed| self.is_in_workspace(&listed.name));
        Ok(listed)
    }

    /// Returns whether a tape belongs to this workspace. The name decides, because old tapes record no workspace.
    pub(super) fn is_in_workspace(&self, name: &TapeName) -> bool {
        let here = TapeName::for_session(&self.workspace, "");
        let workspace_hash = |name: &TapeName| {
            name.as_str()
                .split_once("__")
                .map(|(hash, _)| hash.to_owned())
        };
        workspace_hash(name) == workspace_hash(&here)
    }

    pub(super) fn open_tape(&self, name: TapeName) -> Tape {
        Tape::new(Arc::clone(&self.store), name)
    }
}

impl HomeTapes {
    pub(super) fn new(framework: &Framework, settings: &Arc<Settings>) -> Self {
        let directory = settings.home().join("tapes");
        let store = FileStore::new(&directory, settings.get(&TAPE_DURABILITY).into());
        let tapes = WorkspaceTapes {
            store: Arc::new(store.clone()),
            workspace: framework.workspace_text().to_owned(),
            settings: Arc::clone(settings),
        };
        Self {
            store,
            directory,
            tapes,
        }
    }

    /// Returns the named tapes, or all tapes of the home, newest first. Sidecars follow their tape.
    pub(super) async fn resolve_names(&self, requested: Vec<&str>) -> Result<Vec<TapeName>> {
        let store = &self.store;
        let mut sessions = Vec::new();
        for tape in &requested {
            sessions.push(self.tapes.find_tape(tape).await?.name);
        }
        if requested.is_empty() {
            let mut dated = Vec::new();
            for name in store.list(TapeListFilter::Sessions).await? {
                // An unreadable tape is reported when it is processed.
                let summary = store.summary(&name).await.unwrap_or_default();
                dated.push(ListedTape { name, summary });
            }
            dated.sort_by_cached_key(|listed| Reverse(listed.last_activity()));
            sessions.extend(dated.into_iter().map(|listed| listed.name));
        }
        // List the directory only once, because there may be many sessions.
        let mut sidecars: HashMap<String, Vec<TapeName>> = HashMap::new();
        for sidecar in store.list(TapeListFilter::AllSidecars).await? {
            if let Some((owner, _)) = sidecar.as_sidecar() {
                sidecars.entry(owner.to_owned()).or_default().push(sidecar);
            }
        }
        let mut names = Vec::new();
        for session in sessions {
            let tape_sidecars = sidecars.remove(session.as_str()).unwrap_or_default();
            names.push(session);
            names.extend(tape_sidecars);
        }
        Ok(names)
    }
}

impl ListedTape {
    /// Returns the session id, or the tape name if the session is unknown.
    pub(super) fn label(&self) -> &str {
        match &self.summary.session {
            Some(session) => &session.session_id,
            None => self.name.as_str(),
        }
    }

    pub(super) fn workspace(&self) -> Option<&str> {
        self.summary.session.as_ref()?.workspace.as_deref()
    }

    pub(super) fn channel(&self) -> Option<&str> {
        self.summary.session.as_ref()?.channel.as_deref()
    }

    /// Returns the time of the last entry, for sorting. Empty tapes sort first.
    fn last_activity(&self) -> impl Ord + use<> {
        super::text::parse_sort_time(self.summary.last_date.as_deref().unwrap_or_default())
    }
}
