//! `fs.read`, `fs.write`, `fs.edit`: what they do to files, to the byte.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use bub_kernel::{
    Envelope, ErrorKind, Framework, Inbound, Result, Role, Sender, State, Tool, ToolContext, Turn,
    TurnTape,
};
use bub_settings::{Environment, Loader};
use bub_tape::{MemoryStore, Tape, TapeName};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{sections, with_builtin};

/// A workspace and a home directory side by side.
struct Place {
    dir: TempDir,
    framework: Framework,
    sender: Sender,
}

impl Place {
    fn new() -> Self {
        Self::make(&[])
    }

    fn make(variables: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::create_dir(dir.path().join("user")).unwrap();
        let home = dir.path().canonicalize().unwrap().join("user");
        let fixed = [("HOME", home.clone()), ("BUB_HOME", home.join(".bub"))];
        let fixed = fixed.map(|(name, path)| (name, path.into_os_string()));
        let more = variables
            .iter()
            .map(|(name, value)| (*name, (*value).into()));
        let settings = Loader::new(Environment::from_pairs(fixed.into_iter().chain(more)))
            .sections(sections())
            .load()
            .unwrap();
        let builder = Framework::builder()
            .workspace(dir.path().join("work"))
            .settings(Arc::new(settings));
        let framework = with_builtin(builder).build();
        Self {
            dir,
            framework,
            sender: Sender::terminal(),
        }
    }

    fn confined() -> Self {
        Self::make(&[("BUB_FS_CONFINE", "yes")])
    }

    fn of_a_member() -> Self {
        Self {
            sender: member(),
            ..Self::new()
        }
    }

    fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let place = Self::new();
        fs::write(place.path(name), content).unwrap();
        place
    }

    /// A path in the workspace, without links on the way to it.
    fn path(&self, name: &str) -> PathBuf {
        self.dir
            .path()
            .canonicalize()
            .unwrap()
            .join("work")
            .join(name)
    }

    fn content(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn turn(&self, state: State) -> Turn {
        let message = Inbound::from(Envelope::text("hi")).with_sender(self.sender.clone());
        Turn::detached(&self.framework, message, state)
    }

    /// A state that names the workspace.
    fn state(&self) -> State {
        let state = State::new();
        state.set(
            "_runtime_workspace",
            self.dir.path().join("work").to_str().unwrap(),
        );
        state
    }

    fn context(&self) -> ToolContext {
        ToolContext::new(self.turn(self.state()))
    }

    fn tool(&self, name: &str) -> &dyn Tool {
        let mut tools = self.framework.tools().iter();
        &**tools.find(|tool| tool.spec().name == name).unwrap()
    }

    async fn call(&self, tool: &str, arguments: Value) -> Result<String, String> {
        self.call_in(self.context(), tool, arguments).await
    }

    async fn call_in(
        &self,
        context: ToolContext,
        tool: &str,
        arguments: Value,
    ) -> Result<String, String> {
        let arguments = arguments.as_object().cloned().unwrap();
        let outcome = self.tool(tool).call(arguments, context).await;
        outcome
            .map(|value| value.as_str().unwrap().to_owned())
            .map_err(|error| error.message().to_owned())
    }

    async fn read(&self, arguments: Value) -> Result<String, String> {
        self.call("fs.read", arguments).await
    }

    async fn write(&self, path: impl AsRef<Path>, content: &str) -> Result<String, String> {
        self.call(
            "fs.write",
            json!({"path": path.as_ref(), "content": content}),
        )
        .await
    }

    async fn edit(&self, arguments: Value) -> Result<String, String> {
        self.call("fs.edit", arguments).await
    }

    /// The names in the workspace: nothing may be left lying about.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

// H-114
#[tokio::test]
async fn reading_gives_lines_from_an_offset() {
    let place = Place::with("a", "one\ntwo\r\nthree\u{2028}still three\nfour\n");
    let cases = [
        (
            json!({"path": "a"}),
            "one\ntwo\nthree\u{2028}still three\nfour",
        ),
        (json!({"path": "a", "offset": -5, "limit": 2}), "one\ntwo"),
        (json!({"path": "a", "offset": "1", "limit": "1"}), "two"),
        (json!({"path": "a", "offset": 3}), "four"),
        (json!({"path": "a", "limit": 0}), ""),
        (json!({"path": "a", "offset": 4}), "[the file has 4 lines]"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(
            place.read(arguments.clone()).await.unwrap(),
            expected,
            "{arguments}"
        );
    }
    assert_eq!(
        Place::with("a", "")
            .read(json!({"path": "a"}))
            .await
            .unwrap(),
        ""
    );
    let unfinished = Place::with("a", "one\ntwo");
    assert_eq!(
        unfinished
            .read(json!({"path": "a", "offset": 1}))
            .await
            .unwrap(),
        "two"
    );
    assert_eq!(
        unfinished
            .read(json!({"path": "a", "offset": 2}))
            .await
            .unwrap(),
        "[the file has 2 lines]"
    );
}

// H-114
#[tokio::test]
async fn paths_are_absolute_relative_to_the_workspace_or_in_the_home() {
    let place = Place::with("a", "work");
    fs::write(place.dir.path().join("user/a"), "home").unwrap();
    assert_eq!(place.read(json!({"path": "a"})).await.unwrap(), "work");
    assert_eq!(
        place.read(json!({"path": "../work/a"})).await.unwrap(),
        "work"
    );
    assert_eq!(
        place.read(json!({"path": place.path("a")})).await.unwrap(),
        "work"
    );
    assert_eq!(place.read(json!({"path": "~/a"})).await.unwrap(), "home");
    let context = ToolContext::new(place.turn(State::new()));
    let error = place
        .call_in(context, "fs.read", json!({"path": "a"}))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        "relative path 'a' is not allowed without a workspace"
    );
    let error = place.read(json!({"path": "b"})).await.unwrap_err();
    let expected = format!(
        "cannot read {}: No such file or directory (os error 2)",
        place.path("b").display()
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn what_is_no_text_file_is_refused() {
    let place = Place::with("binary", b"\x7fELF\0\0");
    fs::create_dir(place.path("dir")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(place.path("fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    for (name, what) in [
        ("binary", "is not a text file"),
        ("dir", "is a directory, not a file"),
        ("fifo", "is a pipe, a socket or a device, not a file"),
        ("/dev/zero", "is a pipe, a socket or a device, not a file"),
    ] {
        let error = place.read(json!({"path": name})).await.unwrap_err();
        assert!(error.contains(what), "{error}");
        if name != "binary" {
            assert!(place.write(name, "x").await.unwrap_err().contains(what));
            let error = place
                .edit(json!({"path": name, "old": "a", "new": "b"}))
                .await
                .unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replaced_and_said() {
    let place = Place::with("a", b"caf\xe9\nok\n");
    let text = place.read(json!({"path": "a"})).await.unwrap();
    assert_eq!(
        text,
        "caf\u{fffd}\nok\n[bytes that are not UTF-8 are shown as \u{fffd}]"
    );
    assert_eq!(
        place.read(json!({"path": "a", "offset": 1})).await.unwrap(),
        "ok"
    );
}

#[tokio::test]
async fn huge_files_cost_what_is_read_of_them() {
    let place = Place::with("sparse", "first\nsecond\n");
    // 10 GB that take no room on the disk.
    fs::File::options()
        .write(true)
        .open(place.path("sparse"))
        .unwrap()
        .set_len(10 << 30)
        .unwrap();
    let error = place
        .read(json!({"path": "sparse", "limit": 2}))
        .await
        .unwrap_err();
    assert!(error.contains("not a text"), "{error}");
    let head = "text\n".repeat(4096);
    fs::write(place.path("sparse"), head).unwrap();
    fs::File::options()
        .write(true)
        .open(place.path("sparse"))
        .unwrap()
        .set_len(10 << 30)
        .unwrap();
    assert_eq!(
        place
            .read(json!({"path": "sparse", "limit": 2}))
            .await
            .unwrap(),
        "text\ntext"
    );
    let error = place
        .edit(json!({"path": "sparse", "old": "a", "new": "b"}))
        .await
        .unwrap_err();
    assert!(
        error.starts_with("sparse is too large to edit (10737418240 bytes)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_long_answer_is_cut_at_a_line_and_says_how_to_go_on() {
    let line = format!("{}é\n", "x".repeat(998));
    let place = Place::with("a", line.repeat(3000));
    let mut offset = 0;
    let mut lines = 0;
    loop {
        let text = place
            .read(json!({"path": "a", "offset": offset}))
            .await
            .unwrap();
        assert!(text.len() < (1 << 20) + 100);
        let more = text.rsplit_once("\n[more lines follow: continue with offset=");
        lines += more.map_or(text.as_str(), |(text, _)| text).lines().count();
        let Some((_, next)) = more else { break };
        offset = next.trim_end_matches(']').parse().unwrap();
        assert_eq!(lines, offset);
    }
    assert_eq!(lines, 3000);
    let place = Place::with("a", "é".repeat(1 << 20));
    let text = place.read(json!({"path": "a"})).await.unwrap();
    assert!(text.ends_with("é\n[line 0 is truncated: it is too long to read completely]"));
}

#[tokio::test]
async fn reading_stops_when_the_turn_is_cancelled() {
    let place = Place::with("a", "text\n");
    let context = place.context();
    context.cancel.cancel();
    let arguments = json!({"path": "a"}).as_object().cloned().unwrap();
    let error = place
        .tool("fs.read")
        .call(arguments, context)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

// H-114
#[tokio::test]
async fn writing_creates_directories_and_replaces_everything() {
    let place = Place::new();
    let answer = place
        .write("new/dir/a", "one\r\ntwo\n\u{feff}")
        .await
        .unwrap();
    assert_eq!(
        answer,
        format!("wrote: {}", place.path("new/dir/a").display())
    );
    assert_eq!(
        place.content("new/dir/a"),
        "one\r\ntwo\n\u{feff}".as_bytes()
    );
    place.write("new/dir/a", "").await.unwrap();
    assert_eq!(place.content("new/dir/a"), b"");
    assert_eq!(place.names(), ["new"]);
    assert!(
        place
            .write("new/dir/a/b", "x")
            .await
            .unwrap_err()
            .contains("Not a directory")
    );
}

// W-29: a reader sees the old content or the new one, never a part.
#[tokio::test]
async fn writing_is_atomic_and_keeps_the_mode() {
    let place = Place::with("a", "old");
    fs::set_permissions(place.path("a"), fs::Permissions::from_mode(0o750)).unwrap();
    let mut old = fs::File::open(place.path("a")).unwrap();
    let number = fs::metadata(place.path("a")).unwrap().ino();
    place.write("a", "new").await.unwrap();
    let metadata = fs::metadata(place.path("a")).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o750);
    assert_ne!(
        metadata.ino(),
        number,
        "a new file took the place of the old one"
    );
    let mut text = String::new();
    std::io::Read::read_to_string(&mut old, &mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(place.names(), ["a"]);
}

#[tokio::test]
async fn links_stay_links() {
    let place = Place::with("target", "old");
    symlink("target", place.path("link")).unwrap();
    symlink("missing", place.path("dangling")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    fs::hard_link(place.path("target"), place.path("twin")).unwrap();
    let answer = place.write("link", "new").await.unwrap();
    assert_eq!(answer, format!("wrote: {}", place.path("target").display()));
    place.write("dangling", "made").await.unwrap();
    for (name, content) in [
        ("target", "new"),
        ("link", "new"),
        ("twin", "new"),
        ("missing", "made"),
    ] {
        assert_eq!(place.content(name), content.as_bytes(), "{name}");
    }
    assert!(place.path("link").is_symlink() && place.path("dangling").is_symlink());
    assert_eq!(
        place.names(),
        ["dangling", "link", "loop", "missing", "target", "twin"]
    );
    assert!(
        place
            .write("loop", "x")
            .await
            .unwrap_err()
            .starts_with("too many symbolic links")
    );
}

// W-29
#[tokio::test]
async fn editing_leaves_every_other_byte_as_it_is() {
    let cases: [(&[u8], &str, &str, &[u8]); 7] = [
        (b"one\ntwo\n", "one", "1", b"1\ntwo\n"),
        (b"one\r\ntwo\r\nthree", "two", "2", b"one\r\n2\r\nthree"),
        (b"\n\n\none\n\n", "one", "", b"\n\n\n\n\n"),
        (
            "a\u{2028}b\u{b}c\u{c}d\u{85}e".as_bytes(),
            "c",
            "C",
            "a\u{2028}b\u{b}C\u{c}d\u{85}e".as_bytes(),
        ),
        ("\u{feff}one".as_bytes(), "one", "1", "\u{feff}1".as_bytes()),
        (b"caf\xe9 one \0", "one", "1", b"caf\xe9 1 \0"),
        (b"one\ntwo\n", "one\ntwo\n", "one\r\n", b"one\r\n"),
    ];
    for (content, old, new, expected) in cases {
        let place = Place::with("a", content);
        let answer = place
            .edit(json!({"path": "a", "old": old, "new": new}))
            .await
            .unwrap();
        assert_eq!(answer, format!("edited: {}", place.path("a").display()));
        assert_eq!(place.content("a"), expected, "{old}");
        assert_eq!(place.names(), ["a"]);
    }
}

// W-29, H-114
#[tokio::test]
async fn several_matches_need_more_text_a_start_or_all() {
    let content = "x = 1\n\ny = 2\nx = 1\n";
    let place = Place::with("a", content);
    let error = place
        .edit(json!({"path": "a", "old": "x = 1", "new": "z"}))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        "'x = 1' occurs 2 times in a, at lines 0, 3 (starting at 0); include more context in `old`, or set all=true"
    );
    assert_eq!(place.content("a"), content.as_bytes());
    place
        .edit(json!({"path": "a", "old": "x = 1", "new": "z", "start": 1}))
        .await
        .unwrap();
    assert_eq!(place.content("a"), b"x = 1\n\ny = 2\nz\n");
    fs::write(place.path("a"), content).unwrap();
    let answer = place
        .edit(json!({"path": "a", "old": "x = 1", "new": "z", "all": "true"}))
        .await
        .unwrap();
    assert_eq!(
        answer,
        format!("edited: {} (2 places)", place.path("a").display())
    );
    assert_eq!(place.content("a"), b"z\n\ny = 2\nz\n");
    // Two that share a byte are two: it is not clear which one is meant.
    let place = Place::with("a", "aaa");
    let error = place
        .edit(json!({"path": "a", "old": "aa", "new": "b"}))
        .await
        .unwrap_err();
    assert!(
        error.starts_with("'aa' occurs 2 times in a, at lines 0, 0"),
        "{error}"
    );
    let place = Place::with("a", "a\n".repeat(5000));
    let error = place
        .edit(json!({"path": "a", "old": "a", "new": "b"}))
        .await
        .unwrap_err();
    assert!(
        error.contains("at least 1000 times in a, at lines 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … ("),
        "{error}"
    );
}

// H-114
#[tokio::test]
async fn what_is_not_found_is_told_with_a_hint() {
    let place = Place::with("a", "fn  main() {\r\n\tbody();\r\n}\r\n");
    let cases = [
        ("nothing", 0, "'nothing' not found in a from line 0"),
        (
            "fn  main",
            2,
            "'fn  main' not found in a from line 2; it is at line 0, before `start`",
        ),
        (
            "{\n\tbody",
            0,
            "'{\n\tbody' not found in a from line 0; the line endings differ: \\r\\n in the file, \\n in `old`",
        ),
        (
            "    body();\n}",
            0,
            "'    body();\n}' not found in a from line 0; the same text with different whitespace is at line 1 \
             (starting at 0); read it again",
        ),
    ];
    for (old, start, expected) in cases {
        let edit = json!({"path": "a", "old": old, "new": "x", "start": start});
        assert_eq!(place.edit(edit).await.unwrap_err(), expected);
    }
    let long = place
        .edit(json!({"path": "a", "old": "é".repeat(5000), "new": ""}))
        .await
        .unwrap_err();
    assert!(long.chars().count() < 300, "{long}");
    let unix = Place::with("a", "one\ntwo\n");
    let error = unix
        .edit(json!({"path": "a", "old": "one\r\ntwo", "new": "x"}))
        .await
        .unwrap_err();
    assert!(
        error.ends_with("the line endings differ: \\n in the file, \\r\\n in `old`"),
        "{error}"
    );
}

// W-29
#[tokio::test]
async fn an_edit_that_says_nothing_is_refused() {
    let place = Place::with("a", "one");
    let empty = place
        .edit(json!({"path": "a", "old": "", "new": "x"}))
        .await
        .unwrap_err();
    assert!(empty.starts_with("`old` is empty"), "{empty}");
    let same = place
        .edit(json!({"path": "a", "old": "one", "new": "one"}))
        .await
        .unwrap_err();
    assert!(same.starts_with("`old` and `new` are equal"), "{same}");
    let missing = place
        .edit(json!({"path": "b", "old": "one", "new": "two"}))
        .await
        .unwrap_err();
    assert!(missing.contains("No such file"), "{missing}");
    assert_eq!(place.content("a"), b"one");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // W-29
    #[test]
    fn editing_a_unique_text_is_the_replacement_of_its_bytes(
        before in "[ab\r\n\u{2028}é\u{feff} \t]{0,60}",
        // Not to be found in what is around it.
        old in "x[ab\r\n\u{2028}é \t]{0,8}y",
        after in "[ab\r\n\u{2028}é\u{feff} \t]{0,60}",
        new in ".{0,20}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let place = Place::with("a", format!("{before}{old}{after}"));
        runtime.block_on(place.edit(json!({"path": "a", "old": old, "new": new}))).unwrap();
        prop_assert_eq!(place.content("a"), format!("{before}{new}{after}").into_bytes());
    }
}

#[tokio::test]
async fn edits_at_the_same_time_do_not_undo_each_other() {
    let words: Vec<_> = (0..8).map(|number| format!("word{number};")).collect();
    let place = Place::with("a", words.concat());
    let edits = words
        .iter()
        .map(|word| place.edit(json!({"path": "a", "old": word, "new": "."})));
    for outcome in futures_util::future::join_all(edits).await {
        outcome.unwrap();
    }
    assert_eq!(place.content("a"), b"........");
}

// W-37
#[tokio::test]
async fn confined_tools_stay_in_the_workspace_whatever_the_path_says() {
    let place = Place::confined();
    let outside = place.dir.path().canonicalize().unwrap().join("user");
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::create_dir(place.path("sub")).unwrap();
    symlink(outside.join("secret"), place.path("file-link")).unwrap();
    symlink("../user", place.path("dir-link")).unwrap();
    symlink("dir-link", place.path("link-to-link")).unwrap();
    symlink(outside.join("new"), place.path("dangling")).unwrap();
    symlink(outside.join("new-dir"), place.path("dangling-dir")).unwrap();
    symlink("/proc/self/cwd", place.path("cwd-link")).unwrap();
    let inner = outside.strip_prefix("/").unwrap();
    let escapes = [
        "../user/secret".into(),
        "sub/../../user/secret".into(),
        "missing/../../user/secret".into(),
        "file-link".into(),
        "dir-link/secret".into(),
        "link-to-link/secret".into(),
        "sub/../dir-link/new".into(),
        "dangling".into(),
        "dangling-dir/new".into(),
        "dir-link/../user/secret".into(),
        "~/secret".into(),
        "~".into(),
        "/etc/passwd".into(),
        "/".into(),
        format!("{}/../user/secret", place.path("").display()),
        format!(
            "{}2/secret",
            place.path("").display().to_string().trim_end_matches('/')
        ),
        format!("/proc/self/root/{}/secret", inner.display()),
        format!(
            "/proc/{}/root/{}/secret",
            std::process::id(),
            inner.display()
        ),
        "/proc/self/cwd/Cargo.toml".into(),
        "/proc/thread-self/root/etc/passwd".into(),
        "/proc/self/environ".into(),
        "cwd-link/new".into(),
    ];
    for path in escapes {
        let error = [
            place.read(json!({"path": path})).await,
            place.write(&path, "owned").await,
            place
                .edit(json!({"path": path, "old": "secret", "new": "owned"}))
                .await,
        ];
        for outcome in error {
            let error = outcome.unwrap_err();
            assert!(error.contains("outside the workspace"), "{path}: {error}");
        }
    }
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    assert!(!outside.join("new").exists() && !outside.join("new-dir").exists());
}

#[tokio::test]
async fn confined_tools_work_in_the_workspace() {
    let place = Place::confined();
    symlink("real", place.path("link")).unwrap();
    place.write("link", "through a link").await.unwrap();
    place.write("new/../other/a", "b").await.unwrap();
    place.write(place.path("abs"), "c").await.unwrap();
    assert_eq!(
        place.read(json!({"path": "real"})).await.unwrap(),
        "through a link"
    );
    assert_eq!(place.read(json!({"path": "other/a"})).await.unwrap(), "b");
    // The workspace may itself be reached by a link.
    symlink(place.path(""), place.dir.path().join("alias")).unwrap();
    let context = place.context();
    context.state().set(
        "_runtime_workspace",
        place.dir.path().join("alias").to_str().unwrap(),
    );
    let read = place.call_in(context, "fs.read", json!({"path": "abs"}));
    assert_eq!(read.await.unwrap(), "c");
}

// W-37: whatever the settings say.
#[tokio::test]
async fn the_tools_of_a_member_are_confined() {
    let place = Place::of_a_member();
    let error = place
        .read(json!({"path": "/etc/passwd"}))
        .await
        .unwrap_err();
    assert!(error.contains("outside the workspace"), "{error}");
    place.write("inside", "x").await.unwrap();
}

// W-37: nobody vouched for the sender, so the tools are as confined as a guest's.
#[tokio::test]
async fn the_tools_of_an_unknown_sender_are_confined() {
    let place = Place::new();
    let turn = Turn::detached(&place.framework, Envelope::text("hi"), place.state());
    assert_confined(&place, turn).await;
}

// W-37: the rights are those of the sender, also in a nested run and for a command that steered the turn of somebody else.
#[tokio::test]
async fn nested_runs_and_steered_commands_have_the_rights_of_their_sender() {
    let owner = Place::new();
    let steered = owner.turn(owner.state()).on_behalf_of(Arc::new(member()));
    assert_confined(&owner, nested(&steered)).await;
    assert_confined(&owner, steered).await;

    let member = Place::of_a_member();
    assert_confined(&member, nested(&member.turn(member.state()))).await;

    let context = ToolContext::new(nested(&owner.turn(owner.state())));
    let read = owner.call_in(context, "fs.read", json!({"path": "/etc/passwd"}));
    assert!(!read.await.unwrap().is_empty());
}

fn member() -> Sender {
    Sender {
        role: Role::Member,
        ..Sender::default()
    }
}

/// A subagent's run.
fn nested(turn: &Turn) -> Turn {
    let session_id = turn.session_id().clone();
    let store = Arc::new(MemoryStore::new());
    let tape = Tape::new(store, TapeName::new("work__nested").unwrap());
    let tape = TurnTape::new(tape, turn.framework(), &session_id, None);
    turn.nested(session_id, turn.state().detached(), tape)
}

async fn assert_confined(place: &Place, turn: Turn) {
    let outside = place.dir.path().join("user/new");
    let calls = [
        ("fs.read", json!({"path": "/etc/passwd"})),
        ("fs.write", json!({"path": &outside, "content": "x"})),
        (
            "fs.edit",
            json!({"path": "/etc/passwd", "old": "root", "new": "x"}),
        ),
    ];
    for (tool, arguments) in calls {
        let context = ToolContext::new(turn.clone());
        let error = place.call_in(context, tool, arguments).await.unwrap_err();
        assert!(error.contains("outside the workspace"), "{tool}: {error}");
    }
    assert!(!outside.exists());
    let context = ToolContext::new(turn);
    let inside = json!({"path": "inside", "content": "x"});
    place.call_in(context, "fs.write", inside).await.unwrap();
}
