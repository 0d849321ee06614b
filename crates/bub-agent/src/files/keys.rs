//! Files that users who are not owners do not read: names that start with a dot, and files that hold keys.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::Path,
};

/// Extensions of files that hold keys. All lists are separated by spaces.
const KEY_EXTENSIONS: &str =
    "pem key p8 p12 pfx jks keystore keytab kdbx ppk gpg ovpn env kubeconfig tfstate tfvars";
/// Names of files that hold keys, without their extension.
const KEY_NAMES: &str = "credentials secrets client_secret client_secrets service-account service_account \
                         deploy_key deploy-key private_key private-key kubeconfig netrc _netrc pgpass htpasswd";
/// Extensions of data. A program such as `secrets.rs` is not hidden.
const DATA_EXTENSIONS: &str = "json toml yaml yml ini txt";
/// Names of files that hold keys if they have one of [`TOKEN_EXTENSIONS`]. A directory `auth` is not hidden.
const TOKEN_NAMES: &str = "auth token tokens";
const TOKEN_EXTENSIONS: &str = "json toml txt";
/// Beginnings of names that cloud providers give to JSON files with keys.
const JSON_KEY_PREFIXES: &str = "client_secret service-account service_account";
/// What follows `env` in the names of files with variables.
const ENV_KINDS: &str = "local dev development test stage staging prod production";
/// Algorithms in the names of SSH keys.
const SSH_ALGORITHMS: &str = "rsa dsa ed25519";
/// Ends of the names of copies.
const COPY_SUFFIXES: &str = ".bak .backup .copy .json .old .orig .save .txt ~";
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
        let is_ssh_name = name.starts_with("id_") && !name.contains('.');
        let mut names = std::iter::successors(Some(name.as_str()), |name| copied_name(name));
        name.starts_with('.') || is_ssh_name || names.any(is_key_name)
    })
}

fn is_key_name(name: &str) -> bool {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let is_one_of = |words: &str, word: &str| words.split(' ').any(|known| known == word);
    let is_data = extension.is_empty() || is_one_of(DATA_EXTENSIONS, extension);
    let is_prefixed = |prefix| stem.starts_with(prefix);
    let has_algorithm = |algorithm| stem.contains(algorithm);
    is_one_of(KEY_EXTENSIONS, extension)
        || is_data && is_one_of(KEY_NAMES, stem)
        || is_one_of(TOKEN_EXTENSIONS, extension) && is_one_of(TOKEN_NAMES, stem)
        || is_one_of(ENV_KINDS, extension) && stem.rsplit('.').next() == Some("env")
        || extension == "json" && JSON_KEY_PREFIXES.split(' ').any(is_prefixed)
        || name.starts_with("id_")
            && extension.is_empty()
            && SSH_ALGORITHMS.split(' ').any(has_algorithm)
}

/// Returns the name of the file of which this is a copy by its name, such as `x` for `x.bak` and `x.1`.
fn copied_name(name: &str) -> Option<&str> {
    let mut suffixes = COPY_SUFFIXES.split(' ');
    let numbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    suffixes
        .find_map(|suffix| name.strip_suffix(suffix))
        .or_else(|| numbered.strip_suffix('.'))
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
