//! Who was let in by `bub pair`: a stranger is given a code by a channel, and whoever sits at this computer decides.
//!
//! One file in the home, `pairings.json`: written by a gateway (requests) and by the command line (people), under a lock,
//! in one piece.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind as IoKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result, Role};
use serde::{Deserialize, Serialize};

use crate::journal::now;

/// A code is good for so long, and its owner gets no other before, in milliseconds.
const CODE_TTL_MS: u64 = 60 * 60 * 1000;
/// So many people may wait to be let in.
const MAX_PENDING_REQUESTS: usize = 50;
/// Letters and digits that nobody confuses: 32, so that a byte gives each the same chance.
const CODE_ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const CODE_LENGTH: usize = 8;

/// The pairings of a home.
#[derive(Clone, Debug)]
pub struct Pairings(PathBuf);

/// Somebody who was let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedUser {
    /// The channel.
    pub channel: String,
    /// The id in that channel.
    pub id: String,
    /// The name at the time, to show.
    pub name: String,
    /// Whether as an owner.
    pub owner: bool,
    /// Since when, in milliseconds.
    pub since: u64,
}

impl PairedUser {
    /// What the person is to this house.
    pub fn role(&self) -> Role {
        if self.owner {
            Role::Owner
        } else {
            Role::Member
        }
    }
}

/// Somebody who wants to be let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingRequest {
    /// What the person was told.
    pub code: String,
    /// The channel.
    pub channel: String,
    /// The id in that channel.
    pub id: String,
    /// The name, to show.
    pub name: String,
    /// When, in milliseconds.
    pub at: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct PairingsFile {
    #[serde(default)]
    people: Vec<PairedUser>,
    #[serde(default)]
    requests: Vec<PairingRequest>,
}

impl Pairings {
    /// Those of a home directory.
    pub fn new(home: &Path) -> Self {
        Self(home.join("pairings.json"))
    }

    /// What somebody was let in as.
    pub fn role(&self, channel: &str, id: &str) -> Result<Option<Role>> {
        let people = self.read()?.people;
        let found = people
            .iter()
            .find(|person| person.channel == channel && person.id == id);
        Ok(found.map(PairedUser::role))
    }

    /// Everybody who was let in, and everybody who waits.
    pub fn all(&self) -> Result<(Vec<PairedUser>, Vec<PairingRequest>)> {
        let mut stored = self.read()?;
        stored.forget_old();
        Ok((stored.people, stored.requests))
    }

    /// A code for a stranger; `None` when the person has one already, or too many wait.
    pub fn request_code(&self, channel: &str, id: &str, name: &str) -> Result<Option<String>> {
        self.change(|stored| {
            let is_waiting = stored
                .requests
                .iter()
                .any(|waiting| waiting.channel == channel && waiting.id == id);
            if is_waiting || stored.requests.len() >= MAX_PENDING_REQUESTS {
                return Ok((None, false));
            }
            let code = code()?;
            stored.requests.push(PairingRequest {
                code: code.clone(),
                channel: channel.to_owned(),
                id: id.to_owned(),
                name: display_name(name),
                at: now(),
            });
            Ok((Some(code), true))
        })
    }

    /// Lets the owner of a code in.
    pub fn accept(&self, code: &str, owner: bool) -> Result<PairedUser> {
        let code: String = code
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_uppercase())
            .collect();
        self.change(|stored| {
            let at = stored.requests.iter().position(|waiting| waiting.code == code);
            let at = at.ok_or_else(|| {
                Error::not_found(
                    "nobody has that code, or it is older than an hour; `bub pair list` shows who waits",
                )
            })?;
            let PairingRequest { channel, id, name, .. } = stored.requests.remove(at);
            let person = PairedUser { channel, id, name, owner, since: now() };
            stored.people.retain(|known| (&known.channel, &known.id) != (&person.channel, &person.id));
            stored.people.push(person.clone());
            Ok((person, true))
        })
    }

    /// Forgets somebody who was let in or waits, named `channel:id`, or a request, named by its code.
    pub fn remove(&self, who: &str) -> Result<()> {
        self.change(|stored| {
            let before = stored.people.len() + stored.requests.len();
            let is_meant = |channel: &str, id: &str| format!("{channel}:{id}") == who;
            stored.people.retain(|person| !is_meant(&person.channel, &person.id));
            stored.requests.retain(|waiting| {
                !waiting.code.eq_ignore_ascii_case(who) && !is_meant(&waiting.channel, &waiting.id)
            });
            if before == stored.people.len() + stored.requests.len() {
                let text = format!("`{who}` was not let in by `bub pair`, and does not wait; `bub pair list` shows who was or does");
                return Err(Error::not_found(text));
            }
            Ok(((), true))
        })
    }

    fn read(&self) -> Result<PairingsFile> {
        let text = match std::fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(PairingsFile::default()),
            Err(error) => {
                return Err(Error::config(format!(
                    "cannot read {}: {error}",
                    self.0.display()
                )));
            }
        };
        serde_json::from_slice(&text).map_err(|error| {
            Error::config(format!(
                "{} is damaged: {error}; mend it or delete it",
                self.0.display()
            ))
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut PairingsFile) -> Result<(T, bool)>) -> Result<T> {
        let failed = |error: std::io::Error| {
            Error::unknown(format!("cannot write {}: {error}", self.0.display()))
        };
        if let Some(home) = self.0.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(home)
                .map_err(failed)?;
        }
        let private = |path: &Path| -> std::io::Result<File> {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
        };
        let lock = private(&self.0.with_extension("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut stored = self.read()?;
        stored.forget_old();
        let (outcome, is_changed) = change(&mut stored)?;
        if is_changed {
            let new = self.0.with_extension("new");
            let _ = std::fs::remove_file(&new);
            let mut file = private(&new).map_err(failed)?;
            file.write_all(&serde_json::to_vec_pretty(&stored)?)
                .and_then(|()| file.sync_all())
                .map_err(failed)?;
            std::fs::rename(&new, &self.0).map_err(failed)?;
        }
        Ok(outcome)
    }
}

impl PairingsFile {
    fn forget_old(&mut self) {
        let now = now();
        self.requests
            .retain(|waiting| now.saturating_sub(waiting.at) < CODE_TTL_MS);
    }
}

fn code() -> Result<String> {
    let mut bytes = [0; CODE_LENGTH];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::unknown(format!("no random numbers: {error}")))?;
    let letter = |byte: &u8| {
        CODE_ALPHABET
            .get(usize::from(byte % 32))
            .copied()
            .map_or('A', char::from)
    };
    Ok(bytes.iter().map(letter).collect())
}

/// A name that harms no terminal: it is the choice of a stranger.
fn display_name(name: &str) -> String {
    let is_fine = |letter: &char| {
        letter.is_alphanumeric() || matches!(letter, ' ' | '.' | '-' | '_' | '@' | '\'')
    };
    name.chars().filter(is_fine).take(64).collect()
}
