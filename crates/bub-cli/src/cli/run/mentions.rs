//! Files that a message names with `@path`.

use std::io;

use bub_agent::{files::FileAccess, tools::find_tool};
use bub_kernel::{Error, Framework, MediaItem, Result, Sender};
use serde_json::Map;

use super::input::attach_file;

/// The files that a message names, and why others are not attached.
#[derive(Default)]
pub(in crate::cli) struct Mentions {
    pub(in crate::cli) files: Vec<MediaItem>,
    pub(in crate::cli) notices: Vec<String>,
}

impl Mentions {
    /// Reads the files that a message names with `@path`, relative to the workspace. A word that names no file stays
    /// text; if it looks like a path, a notice says why it is not attached. A word without a dot or slash may be a name:
    /// it gets a notice only in a line that attaches nothing.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if the tool `fs.read` may not read it.
    pub(in crate::cli) fn read(framework: &Framework, text: &str) -> Result<Self> {
        let (mut files, mut notices, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let mentions = text.split_whitespace().filter_map(|word| {
            let name = word.strip_prefix('@')?;
            let name = name.trim_end_matches([',', ';', ':', '.', '?', '!', ')']);
            Some(name).filter(|name| !name.is_empty())
        });
        for name in mentions {
            let path = framework.workspace().join(name);
            let reason = match path.metadata() {
                Ok(metadata) if metadata.is_file() => {
                    check_mention(framework, name)?;
                    files.push(attach_file(framework, &path, false)?);
                    continue;
                }
                Ok(metadata) if metadata.is_dir() => "it is a directory".to_owned(),
                Ok(_) => "it is not a regular file".to_owned(),
                Err(_) if !name.contains(['/', '.']) => {
                    names.push(name);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => "no such file".to_owned(),
                Err(error) => error.to_string(),
            };
            notices.push(format!("not attached: {name}: {reason}"));
        }
        // In pasted code, such words are often something else.
        if files.is_empty() && !names.is_empty() && !text.contains('\n') {
            let names = names.join(", ");
            notices.push(format!("nothing attached: no file named {names}"));
        }
        Ok(Self { files, notices })
    }
}

/// Fails if the tool `fs.read` may not read a file.
fn check_mention(framework: &Framework, name: &str) -> Result<()> {
    let tool = find_tool("fs.read", framework.tools())?.spec();
    let arguments = Map::from_iter([("path".to_owned(), name.into())]);
    let access = FileAccess::new(framework.settings());
    let workspace = Some(framework.workspace());
    match access.refusal_reason(&Sender::terminal(), (workspace, None), tool, &arguments) {
        Some(reason) => Err(Error::invalid_input(format!(
            "cannot attach {name}: {reason}"
        ))),
        None => Ok(()),
    }
}
