//! Reads the file that a call of `fs.write` replaces, so that its diff shows what changes.

use std::{io::Read as _, path::Path};

use serde_json::{Map, Value};

/// Maximum size of a replaced file that a diff shows, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Returns the text of the file that a call replaces. Returns `None` if the call replaces no file of the workspace, or if
/// the file is no text or too large. Other files are not read, because the policy has not decided about the call yet.
///
/// Call it before the call runs. What it returns is for the user at the terminal only.
pub(crate) async fn read_replaced_file(
    workspace: &Path,
    tool: &str,
    arguments: &Map<String, Value>,
) -> Option<String> {
    if !matches!(tool, "fs.write" | "fs_write") {
        return None;
    }
    let path = workspace.join(arguments.get("path")?.as_str()?);
    let workspace = workspace.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let path = path.canonicalize().ok()?;
        let is_inside = path.starts_with(workspace.canonicalize().ok()?);
        // A pipe or a device may never end.
        if !is_inside || !path.is_file() {
            return None;
        }
        let mut text = String::new();
        let mut file = std::fs::File::open(path).ok()?.take(MAX_FILE_BYTES + 1);
        file.read_to_string(&mut text).ok()?;
        Some(text).filter(|text| text.len() as u64 <= MAX_FILE_BYTES)
    });
    reading.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_text_files_of_the_workspace_are_read() {
        let root = tempfile::tempdir().unwrap();
        let workspace = root.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        let large = vec![b'x'; 1024 * 1024 + 1];
        for (name, content) in [
            ("workspace/a.txt", b"one\n".as_slice()),
            ("workspace/binary", b"\xff\xfe"),
            ("workspace/large", &large),
            ("outside", b"secret"),
        ] {
            std::fs::write(root.path().join(name), content).unwrap();
        }
        std::os::unix::fs::symlink(root.path().join("outside"), workspace.join("link")).unwrap();
        let outside = root.path().join("outside");
        let outside = outside.to_str().unwrap();
        for (tool, path, text) in [
            ("fs.write", "a.txt", Some("one\n")),
            ("fs_write", "./a.txt", Some("one\n")),
            ("fs.edit", "a.txt", None),
            ("fs.write", "missing", None),
            ("fs.write", "binary", None),
            ("fs.write", "large", None),
            ("fs.write", ".", None),
            ("fs.write", "/dev/null", None),
            ("fs.write", "../outside", None),
            ("fs.write", "link", None),
            ("fs.write", outside, None),
        ] {
            let arguments = json!({"path": path, "content": "x"});
            let arguments = arguments.as_object().unwrap();
            let read = read_replaced_file(&workspace, tool, arguments).await;
            assert_eq!(read.as_deref(), text, "{tool} {path}");
        }
    }
}
