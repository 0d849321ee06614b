//! Files that users who are not owners do not read: names that start with a dot, and files that hold keys.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::Path,
};

/// Extensions of files that hold keys.
const KEY_EXTENSIONS: &[&str] = &[
    "pem",
    "key",
    "p8",
    "p12",
    "pfx",
    "jks",
    "keystore",
    "keytab",
    "kdbx",
    "ppk",
    "gpg",
    "ovpn",
    "env",
    "kubeconfig",
    "tfstate",
    "tfvars",
];
/// Names of files that hold keys, without their extension.
const KEY_NAMES: &[&str] = &[
    "credentials",
    "secrets",
    "client_secret",
    "client_secrets",
    "service-account",
    "service_account",
    "deploy_key",
    "deploy-key",
    "private_key",
    "private-key",
    "kubeconfig",
    "netrc",
    "_netrc",
    "pgpass",
    "htpasswd",
];
/// Extensions of data. A program such as `secrets.rs` is not hidden.
const DATA_EXTENSIONS: &[&str] = &["", "json", "toml", "yaml", "yml", "ini", "txt"];
/// Names of files that hold keys if they have one of [`TOKEN_EXTENSIONS`]. A directory `auth` is not hidden.
const TOKEN_NAMES: &[&str] = &["auth", "token", "tokens"];
const TOKEN_EXTENSIONS: &[&str] = &["json", "toml", "txt"];
/// Beginnings of names that cloud providers give to JSON files with keys.
const JSON_KEY_PREFIXES: &[&str] = &["client_secret", "service-account", "service_account"];
/// What follows `env` in the names of files with variables.
const ENV_KINDS: &[&str] = &[
    "local",
    "dev",
    "development",
    "test",
    "stage",
    "staging",
    "prod",
    "production",
];
/// Algorithms in the names of SSH keys.
const SSH_ALGORITHMS: &[&str] = &["rsa", "dsa", "ed25519"];
/// Ends of the names of copies.
const COPY_SUFFIXES: &[&str] = &[
    ".bak", ".backup", ".copy", ".json", ".old", ".orig", ".save", ".txt", "~",
];
/// How much of a file is searched for a private key. A certificate may precede it.
const KEY_PROBE_BYTES: u64 = 64 * 1024;
const KEY_START: &[u8] = b"-----BEGIN ";
const KEY_END: &[u8] = b"PRIVATE KEY";
/// The longest text between [`KEY_START`] and [`KEY_END`], such as `OPENSSH `.
const MAX_KEY_TYPE_BYTES: usize = 32;

/// Returns whether users who are not owners do not see a path in the workspace.
pub(super) fn is_hidden_from_members(path: &Path) -> bool {
    path.iter().any(|name| {
        let name = name.to_string_lossy().to_ascii_lowercase();
        let mut original = Some(name.as_str());
        let is_ssh_name = name.starts_with("id_") && !name.contains('.');
        name.starts_with('.')
            || is_ssh_name
            || std::iter::from_fn(|| {
                let current = original?;
                original = without_copy_suffix(current);
                Some(current)
            })
            .any(is_key_name)
    })
}

fn is_key_name(name: &str) -> bool {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let has_algorithm = || SSH_ALGORITHMS.iter().any(|kind| stem.contains(kind));
    let is_prefixed = || {
        let mut prefixes = JSON_KEY_PREFIXES.iter();
        prefixes.any(|prefix| stem.starts_with(prefix))
    };
    KEY_EXTENSIONS.contains(&extension)
        || KEY_NAMES.contains(&stem) && DATA_EXTENSIONS.contains(&extension)
        || TOKEN_NAMES.contains(&stem) && TOKEN_EXTENSIONS.contains(&extension)
        || ENV_KINDS.contains(&extension) && stem.rsplit('.').next() == Some("env")
        || extension == "json" && is_prefixed()
        || extension.is_empty() && stem.starts_with("id_") && has_algorithm()
}

/// Returns the name of the file of which this is a copy by its name, such as `x` for `x.bak` and `x.1`.
fn without_copy_suffix(name: &str) -> Option<&str> {
    let mut suffixes = COPY_SUFFIXES.iter();
    let number = || {
        let (stem, extension) = name.rsplit_once('.')?;
        let is_number = extension.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(stem)
    };
    suffixes
        .find_map(|suffix| name.strip_suffix(suffix))
        .or_else(number)
}

/// Returns whether the file starts with a private key, or with text that contains one. Then continues at its start.
pub(super) fn has_private_key(file: &mut File) -> io::Result<bool> {
    let mut head = Vec::new();
    file.take(KEY_PROBE_BYTES).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(contains_private_key(&head))
}

/// Returns whether a text contains the first line of a private key, such as `-----BEGIN OPENSSH PRIVATE KEY-----`.
pub(super) fn contains_private_key(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, KEY_START).any(|start| {
        let after = text.get(start + KEY_START.len()..).unwrap_or_default();
        let is_type =
            |byte: &&u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || **byte == b' ';
        let length = after.iter().take_while(is_type).count();
        let label = after.get(..length.min(MAX_KEY_TYPE_BYTES + KEY_END.len()));
        memchr::memmem::find(label.unwrap_or_default(), KEY_END).is_some()
    })
}
