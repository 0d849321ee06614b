//! Pairing: a channel gives an unknown user a code, and the owner grants access with `bub pair CODE`.
//!
//! The file `pairings.json` in the home stores paired users and pending requests. The gateway adds requests and the
//! command line adds users. Both replace the file atomically, under a lock.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind as IoKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bub_kernel::{Error, Result, Role};
use serde::{Deserialize, Serialize};

use crate::journal::now_ms;

/// How long a code is valid, in milliseconds. A user gets no other code during this time.
const CODE_TTL_MS: u64 = 60 * 60 * 1000;
/// Maximum number of pending requests per channel. Each user has at most one, and it stays until it expires, so others cannot
/// take its place. The limit is high: otherwise, a few strangers could keep all other users from getting a code.
const MAX_PENDING_REQUESTS: usize = 1000;
/// Letters and digits that are not easily confused. There are 32, so that a random byte selects each equally often.
const CODE_ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// Number of characters in a code.
const CODE_LENGTH: usize = 8;

/// The pairings that are stored in a home.
#[derive(Clone, Debug)]
pub struct Pairings(PathBuf);

/// A user that was granted access with a pairing code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedUser {
    /// Channel of the user.
    pub channel: String,
    /// Id of the user in the channel.
    pub id: String,
    /// Display name at the time of the request.
    pub name: String,
    /// Whether the user has the owner role.
    pub owner: bool,
    /// When access was granted, in milliseconds since 1970.
    pub since: u64,
}

impl PairedUser {
    /// Returns the user's role.
    pub fn role(&self) -> Role {
        if self.owner {
            Role::Owner
        } else {
            Role::Member
        }
    }
}

/// A pending request for access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingRequest {
    /// Code that the user received.
    pub code: String,
    /// Channel of the user.
    pub channel: String,
    /// Id of the user in the channel.
    pub id: String,
    /// Display name of the user.
    pub name: String,
    /// When the request was made, in milliseconds since 1970.
    pub at: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct PairingsFile {
    #[serde(default)]
    #[serde(rename = "people")]
    users: Vec<PairedUser>,
    #[serde(default)]
    requests: Vec<PairingRequest>,
}

impl Pairings {
    /// Opens the pairings of a home directory.
    pub fn new(home: &Path) -> Self {
        Self(home.join("pairings.json"))
    }

    /// Returns the role of a paired user, or `None` if the user is not paired.
    pub fn role(&self, channel: &str, id: &str) -> Result<Option<Role>> {
        let users = self.read_file()?.users;
        let mut users = users
            .iter()
            .filter(|user| user.channel == channel && user.id == id);
        Ok(users.next().map(PairedUser::role))
    }

    /// Returns all paired users and all pending requests.
    pub fn users_and_requests(&self) -> Result<(Vec<PairedUser>, Vec<PairingRequest>)> {
        let mut stored = self.read_file()?;
        stored.remove_expired_requests();
        Ok((stored.users, stored.requests))
    }

    /// Creates a code for an unknown user. Returns `None` if the user already has a code or if too many requests of the
    /// channel are pending.
    pub fn request_code(&self, channel: &str, id: &str, name: &str) -> Result<Option<String>> {
        self.update_file(|stored| {
            let requests = stored.requests.iter();
            let mut requests = requests.filter(|request| request.channel == channel);
            let count = requests.clone().count();
            if requests.any(|request| request.id == id) {
                return Ok((None, false));
            }
            if count >= MAX_PENDING_REQUESTS {
                let hint = "remove requests with `bub pair remove`, or allow users in the settings of the channel";
                tracing::warn!(channel, count, hint, "pairing.queue_full");
                return Ok((None, false));
            }
            let code = random_code()?;
            stored.requests.push(PairingRequest {
                code: code.clone(),
                channel: channel.to_owned(),
                id: id.to_owned(),
                name: sanitize_name(name),
                at: now_ms(),
            });
            Ok((Some(code), true))
        })
    }

    /// Grants access to the user who received a code, with the owner role if `owner` is true.
    ///
    /// # Errors
    ///
    /// Fails if the code is unknown or expired.
    pub fn accept_code(&self, code: &str, owner: bool) -> Result<PairedUser> {
        let code: String = code
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_uppercase())
            .collect();
        self.update_file(|stored| {
            let mut requests = stored.requests.iter();
            let Some(index) = requests.position(|request| request.code == code) else {
                return Err(Error::not_found(
                    "unknown or expired pairing code; run `bub pair list` to see pending requests",
                ));
            };
            let PairingRequest {
                channel, id, name, ..
            } = stored.requests.remove(index);
            let user = PairedUser {
                channel,
                id,
                name,
                owner,
                since: now_ms(),
            };
            stored
                .users
                .retain(|other| (&other.channel, &other.id) != (&user.channel, &user.id));
            stored.users.push(user.clone());
            Ok((user, true))
        })
    }

    /// Removes a paired user or a pending request by `channel:id`, or a pending request by its code.
    ///
    /// # Errors
    ///
    /// Fails if no user and no request matches.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.update_file(|stored| {
            let previous_count = stored.users.len() + stored.requests.len();
            let is_match = |channel: &str, id: &str| format!("{channel}:{id}") == name;
            stored.users.retain(|user| !is_match(&user.channel, &user.id));
            stored.requests.retain(|request| {
                !request.code.eq_ignore_ascii_case(name) && !is_match(&request.channel, &request.id)
            });
            if previous_count == stored.users.len() + stored.requests.len() {
                let text = format!("unknown user or request `{name}`; run `bub pair list` to see paired users and pending requests");
                return Err(Error::not_found(text));
            }
            Ok(((), true))
        })
    }

    fn read_file(&self) -> Result<PairingsFile> {
        let text = match std::fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == IoKind::NotFound => return Ok(PairingsFile::default()),
            Err(error) => {
                return Err(Error::config(format!(
                    "cannot read the pairings in `{}`: {error}; check its permissions",
                    self.0.display()
                )));
            }
        };
        serde_json::from_slice(&text).map_err(|error| {
            Error::config(format!(
                "pairings file `{}` is damaged: {error}; repair or delete it",
                self.0.display()
            ))
        })
    }

    fn update_file<T>(
        &self,
        change: impl FnOnce(&mut PairingsFile) -> Result<(T, bool)>,
    ) -> Result<T> {
        let write_error = |error: std::io::Error| {
            Error::unknown(format!(
                "cannot write the pairings in `{}`: {error}; check its permissions and the disk space",
                self.0.display()
            ))
        };
        if let Some(home) = self.0.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(home)
                .map_err(write_error)?;
        }
        let open_private = |path: &Path| -> std::io::Result<File> {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
        };
        let lock = open_private(&self.0.with_extension("lock")).map_err(write_error)?;
        lock.lock().map_err(write_error)?;
        let mut stored = self.read_file()?;
        stored.remove_expired_requests();
        let (outcome, is_changed) = change(&mut stored)?;
        if is_changed {
            // The lock keeps this name free, so a crate for temporary files would not make the code shorter.
            let new_path = self.0.with_extension("new");
            let _ = std::fs::remove_file(&new_path);
            let mut file = open_private(&new_path).map_err(write_error)?;
            file.write_all(&serde_json::to_vec_pretty(&stored)?)
                .and_then(|()| file.sync_all())
                .map_err(write_error)?;
            std::fs::rename(&new_path, &self.0).map_err(write_error)?;
        }
        Ok(outcome)
    }
}

impl PairingsFile {
    fn remove_expired_requests(&mut self) {
        let now = now_ms();
        self.requests
            .retain(|request| now.saturating_sub(request.at) < CODE_TTL_MS);
    }
}

fn random_code() -> Result<String> {
    let mut bytes = [0; CODE_LENGTH];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::unknown(format!("cannot generate a pairing code: {error}")))?;
    let letter = |byte: &u8| {
        CODE_ALPHABET
            .get(usize::from(byte % 32))
            .copied()
            .map_or('A', char::from)
    };
    Ok(bytes.iter().map(letter).collect())
}

/// Removes characters that could affect a terminal from a display name, because an unknown user chose the name.
fn sanitize_name(name: &str) -> String {
    let is_allowed = |letter: &char| {
        letter.is_alphanumeric() || matches!(letter, ' ' | '.' | '-' | '_' | '@' | '\'')
    };
    name.chars().filter(is_allowed).take(64).collect()
}
