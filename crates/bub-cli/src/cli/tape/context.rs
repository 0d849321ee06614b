//! The tapes a command works on, and what the registry says about them.

use std::{cmp::Reverse, collections::HashMap, path::PathBuf, sync::Arc};

use bub_kernel::settings::TAPE_DURABILITY;
use bub_kernel::{Error, Framework};
use bub_settings::Settings;
use bub_tape::{FileStore, Result, Tape, TapeListFilter, TapeName, TapeStore, TapeSummary};

use super::progress::ProgressLine;

/// The store of the running program, seen from a workspace.
pub(super) struct WorkspaceTapes {
    pub(super) store: Arc<dyn TapeStore>,
    pub(super) workspace: String,
    pub(super) settings: Arc<Settings>,
}

/// The files of the home, seen from a workspace.
pub(super) struct HomeTapes {
    pub(super) store: FileStore,
    pub(super) directory: PathBuf,
    pub(super) tapes: WorkspaceTapes,
}

/// A tape and what its index knows.
#[derive(Debug, Clone)]
pub(super) struct ListedTape {
    pub(super) name: TapeName,
    pub(super) summary: TapeSummary,
}

impl WorkspaceTapes {
    /// The store that plugins provide; only inside a running scope.
    pub(super) fn open(
        framework: &Framework,
        settings: &Arc<Settings>,
    ) -> bub_kernel::Result<Self> {
        let store = framework
            .tape_store()
            .ok_or_else(|| Error::config("no plugin provides a tape store"))?;
        Ok(Self {
            store,
            workspace: framework.workspace_text().to_owned(),
            settings: Arc::clone(settings),
        })
    }

    /// All sessions, the latest first. One that cannot be read does not hide the others.
    pub(super) async fn sessions(&self) -> Result<Vec<ListedTape>> {
        let names = self.store.list(TapeListFilter::Sessions).await?;
        let mut progress = ProgressLine::patient("reading", names.len());
        let mut listed = Vec::new();
        for name in names {
            progress.next(name.as_str());
            match self.store.summary(&name).await {
                Ok(summary) => listed.push(ListedTape { name, summary }),
                Err(error) => super::print_note(&format!("left out: {error}")),
            }
        }
        listed.sort_by_cached_key(|listed| Reverse(listed.last_moment()));
        Ok(listed)
    }

    /// The sessions of this workspace, the latest first.
    pub(super) async fn sessions_here(&self) -> Result<Vec<ListedTape>> {
        let mut listed = self.sessions().await?;
        listed.retain(|listed| self.is_here(&listed.name));
        Ok(listed)
    }

    /// Whether a tape belongs to this workspace: its name says so, also on tapes that know no more about themselves.
    pub(super) fn is_here(&self, name: &TapeName) -> bool {
        let own = TapeName::for_session(&self.workspace, "");
        let workspace = |name: &TapeName| {
            name.as_str()
                .split_once("__")
                .map(|(hash, _)| hash.to_owned())
        };
        workspace(name) == workspace(&own)
    }

    pub(super) fn tape(&self, name: TapeName) -> Tape {
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

    /// The tapes that were named, or all of the store, the latest first; sidecars follow their tape.
    pub(super) async fn resolve_names(&self, given: Vec<&str>) -> Result<Vec<TapeName>> {
        let store = &self.store;
        let mut sessions = Vec::new();
        for given in &given {
            sessions.push(self.tapes.find(given).await?.name);
        }
        if given.is_empty() {
            let mut dated = Vec::new();
            for name in store.list(TapeListFilter::Sessions).await? {
                // Why one cannot be read is told when it is worked on.
                let summary = store.summary(&name).await.unwrap_or_default();
                dated.push(ListedTape { name, summary });
            }
            dated.sort_by_cached_key(|listed| Reverse(listed.last_moment()));
            sessions.extend(dated.into_iter().map(|listed| listed.name));
        }
        // One look at the directory: there may be very many sessions.
        let mut sidecars: HashMap<String, Vec<TapeName>> = HashMap::new();
        for sidecar in store.list(TapeListFilter::AllSidecars).await? {
            if let Some((owner, _)) = sidecar.as_sidecar() {
                sidecars.entry(owner.to_owned()).or_default().push(sidecar);
            }
        }
        let mut names = Vec::new();
        for session in sessions {
            let own = sidecars.remove(session.as_str()).unwrap_or_default();
            names.push(session);
            names.extend(own);
        }
        Ok(names)
    }
}

impl ListedTape {
    /// What people call it: the session id, or the tape name while nothing else is known.
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

    /// When something was last written; nothing sorts before everything.
    fn last_moment(&self) -> impl Ord + use<> {
        super::text::moment(self.summary.last_date.as_deref().unwrap_or_default())
    }
}
