//! The tools `fs.read`, `fs.write` and `fs.edit`, checked byte for byte.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
};

use bub::testing;
use bub_kernel::{
    Envelope, ErrorKind, Framework, FrameworkBuilder, Inbound, Result, Role, Sender, State, Tool,
    ToolContext, Turn, TurnTape,
};
use bub_tape::{MemoryStore, Tape, TapeName};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A workspace and a home directory side by side.
pub(crate) struct FileFixture {
    pub(crate) dir: TempDir,
    framework: Framework,
    pub(crate) sender: Sender,
}

impl FileFixture {
    /// Creates a fixture whose tools are not confined for owners.
    pub(crate) fn new() -> Self {
        Self::make(&[("BUB_SANDBOX_PROFILE", "off")])
    }

    pub(crate) fn make(variables: &[(&str, &str)]) -> Self {
        Self::make_with(variables, |builder| builder)
    }

    pub(crate) fn make_with(
        variables: &[(&str, &str)],
        add: impl FnOnce(FrameworkBuilder) -> FrameworkBuilder,
    ) -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::create_dir(dir.path().join("user")).unwrap();
        let home = dir.path().canonicalize().unwrap().join("user");
        let test = testing::framework(dir.path())
            .env("HOME", &home)
            .env("BUB_HOME", home.join(".bub"))
            .env("BUB_SANDBOX_PROFILE", "workspace");
        let variables = variables.iter();
        let test = variables.fold(test, |test, (name, value)| test.env(name, value));
        let builder = test.builder().unwrap().workspace(dir.path().join("work"));
        let framework = add(builder).build();
        Self {
            dir,
            framework,
            sender: Sender::terminal(),
        }
    }

    fn confined() -> Self {
        Self::make(&[("BUB_FS_CONFINE", "yes")])
    }

    pub(crate) fn of_a_member() -> Self {
        Self {
            sender: member(),
            ..Self::new()
        }
    }

    fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let fixture = Self::new();
        fs::write(fixture.path(name), content).unwrap();
        fixture
    }

    /// Returns a path in the workspace without symbolic links.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
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

    pub(crate) fn turn(&self, state: State) -> Turn {
        let message = Inbound::from(Envelope::from_text("hi")).with_sender(self.sender.clone());
        Turn::detached(&self.framework, message, state)
    }

    /// Returns a state that names the workspace.
    pub(crate) fn state(&self) -> State {
        let state = State::new();
        state.set(
            "_runtime_workspace",
            self.dir.path().join("work").to_str().unwrap(),
        );
        state
    }

    pub(crate) fn context(&self) -> ToolContext {
        ToolContext::new(self.turn(self.state()))
    }

    fn tool(&self, name: &str) -> &dyn Tool {
        let mut tools = self.framework.tools().iter();
        &**tools.find(|tool| tool.spec().name == name).unwrap()
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<String, String> {
        self.call_in(self.context(), tool, arguments).await
    }

    pub(crate) async fn call_in(
        &self,
        context: ToolContext,
        tool: &str,
        arguments: Value,
    ) -> Result<String, String> {
        let arguments = arguments.as_object().cloned().unwrap();
        let tool = self.tool(tool);
        let outcome = tool.call(arguments, context).await;
        let text = |value: Value| tool.render(&value).or(value.as_str().map(str::to_owned));
        outcome
            .map(|value| text(value).unwrap())
            .map_err(|error| error.message().to_owned())
    }

    pub(crate) async fn read(&self, arguments: Value) -> Result<String, String> {
        self.call("fs.read", arguments).await
    }

    pub(crate) async fn write(
        &self,
        path: impl AsRef<Path>,
        content: &str,
    ) -> Result<String, String> {
        self.call(
            "fs.write",
            json!({"path": path.as_ref(), "content": content}),
        )
        .await
    }

    pub(crate) async fn edit(&self, arguments: Value) -> Result<String, String> {
        self.call("fs.edit", arguments).await
    }

    /// Returns the names in the workspace, to check that no temporary files are left.
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
    let fixture = FileFixture::with("a", "one\ntwo\r\nthree\u{2028}still three\nfour\n");
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
            fixture.read(arguments.clone()).await.unwrap(),
            expected,
            "{arguments}"
        );
    }
    assert_eq!(
        FileFixture::with("a", "")
            .read(json!({"path": "a"}))
            .await
            .unwrap(),
        ""
    );
    let unfinished = FileFixture::with("a", "one\ntwo");
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
    let fixture = FileFixture::with("a", "work");
    fs::write(fixture.dir.path().join("user/a"), "home").unwrap();
    assert_eq!(fixture.read(json!({"path": "a"})).await.unwrap(), "work");
    assert_eq!(
        fixture.read(json!({"path": "../work/a"})).await.unwrap(),
        "work"
    );
    assert_eq!(
        fixture
            .read(json!({"path": fixture.path("a")}))
            .await
            .unwrap(),
        "work"
    );
    assert_eq!(fixture.read(json!({"path": "~/a"})).await.unwrap(), "home");
    let context = ToolContext::new(fixture.turn(State::new()));
    let error = fixture
        .call_in(context, "fs.read", json!({"path": "a"}))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        "cannot resolve 'a': no workspace is set; pass an absolute path"
    );
    let error = fixture.read(json!({"path": "b"})).await.unwrap_err();
    let expected = format!(
        "cannot read {}: No such file or directory (os error 2)",
        fixture.path("b").display()
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn what_is_no_text_file_is_refused() {
    let fixture = FileFixture::with("binary", b"\x7fELF\0\0");
    fs::create_dir(fixture.path("dir")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(fixture.path("fifo"))
        .status()
        .unwrap();
    assert!(made.success());
    for (name, what) in [
        ("binary", "is not a text file"),
        ("dir", "is a directory, not a file"),
        ("fifo", "is a pipe, a socket or a device, not a file"),
        ("/dev/zero", "is a pipe, a socket or a device, not a file"),
    ] {
        let error = fixture.read(json!({"path": name})).await.unwrap_err();
        assert!(error.contains(what), "{error}");
        if name != "binary" {
            assert!(fixture.write(name, "x").await.unwrap_err().contains(what));
            let error = fixture
                .edit(json!({"path": name, "old": "a", "new": "b"}))
                .await
                .unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replaced_and_said() {
    let fixture = FileFixture::with("a", b"caf\xe9\nok\n");
    let text = fixture.read(json!({"path": "a"})).await.unwrap();
    assert_eq!(
        text,
        "caf\u{fffd}\nok\n[bytes that are not UTF-8 are shown as \u{fffd}]"
    );
    assert_eq!(
        fixture
            .read(json!({"path": "a", "offset": 1}))
            .await
            .unwrap(),
        "ok"
    );
}

#[tokio::test]
async fn huge_files_cost_what_is_read_of_them() {
    let fixture = FileFixture::with("sparse", "first\nsecond\n");
    // A sparse file of 10 GB.
    fs::File::options()
        .write(true)
        .open(fixture.path("sparse"))
        .unwrap()
        .set_len(10 << 30)
        .unwrap();
    let error = fixture
        .read(json!({"path": "sparse", "limit": 2}))
        .await
        .unwrap_err();
    assert!(error.contains("not a text"), "{error}");
    let head = "text\n".repeat(4096);
    fs::write(fixture.path("sparse"), head).unwrap();
    fs::File::options()
        .write(true)
        .open(fixture.path("sparse"))
        .unwrap()
        .set_len(10 << 30)
        .unwrap();
    assert_eq!(
        fixture
            .read(json!({"path": "sparse", "limit": 2}))
            .await
            .unwrap(),
        "text\ntext"
    );
    let error = fixture
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
    let fixture = FileFixture::with("a", line.repeat(3000));
    let mut offset = 0;
    let mut lines = 0;
    loop {
        let text = fixture
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
    let fixture = FileFixture::with("a", "é".repeat(1 << 20));
    let text = fixture.read(json!({"path": "a"})).await.unwrap();
    assert!(text.ends_with("é\n[line 0 is truncated: it is too long to read completely]"));
}

#[tokio::test]
async fn reading_stops_when_the_turn_is_cancelled() {
    let fixture = FileFixture::with("a", "text\n");
    let context = fixture.context();
    context.cancel.cancel();
    let arguments = json!({"path": "a"}).as_object().cloned().unwrap();
    let error = fixture
        .tool("fs.read")
        .call(arguments, context)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

// H-114
#[tokio::test]
async fn writing_creates_directories_and_replaces_everything() {
    let fixture = FileFixture::new();
    let answer = fixture
        .write("new/dir/a", "one\r\ntwo\n\u{feff}")
        .await
        .unwrap();
    assert_eq!(
        answer,
        format!("wrote: {}", fixture.path("new/dir/a").display())
    );
    assert_eq!(
        fixture.content("new/dir/a"),
        "one\r\ntwo\n\u{feff}".as_bytes()
    );
    fixture.write("new/dir/a", "").await.unwrap();
    assert_eq!(fixture.content("new/dir/a"), b"");
    assert_eq!(fixture.names(), ["new"]);
    assert!(
        fixture
            .write("new/dir/a/b", "x")
            .await
            .unwrap_err()
            .contains("Not a directory")
    );
}

// W-29: a reader sees the old content or the new content, never a part.
#[tokio::test]
async fn writing_is_atomic_and_keeps_the_mode() {
    let fixture = FileFixture::with("a", "old");
    fs::set_permissions(fixture.path("a"), fs::Permissions::from_mode(0o750)).unwrap();
    let mut old = fs::File::open(fixture.path("a")).unwrap();
    let number = fs::metadata(fixture.path("a")).unwrap().ino();
    fixture.write("a", "new").await.unwrap();
    let metadata = fs::metadata(fixture.path("a")).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o750);
    assert_ne!(
        metadata.ino(),
        number,
        "a new file took the fixture of the old one"
    );
    let mut text = String::new();
    std::io::Read::read_to_string(&mut old, &mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(fixture.names(), ["a"]);
}

#[tokio::test]
async fn links_stay_links() {
    let fixture = FileFixture::with("target", "old");
    symlink("target", fixture.path("link")).unwrap();
    symlink("missing", fixture.path("dangling")).unwrap();
    symlink("loop", fixture.path("loop")).unwrap();
    fs::hard_link(fixture.path("target"), fixture.path("twin")).unwrap();
    let answer = fixture.write("link", "new").await.unwrap();
    assert_eq!(
        answer,
        format!("wrote: {}", fixture.path("target").display())
    );
    fixture.write("dangling", "made").await.unwrap();
    for (name, content) in [
        ("target", "new"),
        ("link", "new"),
        ("twin", "new"),
        ("missing", "made"),
    ] {
        assert_eq!(fixture.content(name), content.as_bytes(), "{name}");
    }
    assert!(fixture.path("link").is_symlink() && fixture.path("dangling").is_symlink());
    assert_eq!(
        fixture.names(),
        ["dangling", "link", "loop", "missing", "target", "twin"]
    );
    assert!(
        fixture
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
        let fixture = FileFixture::with("a", content);
        let answer = fixture
            .edit(json!({"path": "a", "old": old, "new": new}))
            .await
            .unwrap();
        assert_eq!(answer, format!("edited: {}", fixture.path("a").display()));
        assert_eq!(fixture.content("a"), expected, "{old}");
        assert_eq!(fixture.names(), ["a"]);
    }
}

// W-29, H-114
#[tokio::test]
async fn several_matches_need_more_text_a_start_or_all() {
    let content = "x = 1\n\ny = 2\nx = 1\n";
    let fixture = FileFixture::with("a", content);
    let error = fixture
        .edit(json!({"path": "a", "old": "x = 1", "new": "z"}))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        "'x = 1' occurs 2 times in a, at lines 0, 3 (starting at 0); include more context in `old`, or set all=true"
    );
    assert_eq!(fixture.content("a"), content.as_bytes());
    fixture
        .edit(json!({"path": "a", "old": "x = 1", "new": "z", "start": 1}))
        .await
        .unwrap();
    assert_eq!(fixture.content("a"), b"x = 1\n\ny = 2\nz\n");
    fs::write(fixture.path("a"), content).unwrap();
    let answer = fixture
        .edit(json!({"path": "a", "old": "x = 1", "new": "z", "all": "true"}))
        .await
        .unwrap();
    assert_eq!(
        answer,
        format!("edited: {} (2 replacements)", fixture.path("a").display())
    );
    assert_eq!(fixture.content("a"), b"z\n\ny = 2\nz\n");
    // Overlapping matches are ambiguous, too.
    let fixture = FileFixture::with("a", "aaa");
    let error = fixture
        .edit(json!({"path": "a", "old": "aa", "new": "b"}))
        .await
        .unwrap_err();
    assert!(
        error.starts_with("'aa' occurs 2 times in a, at lines 0, 0"),
        "{error}"
    );
    let fixture = FileFixture::with("a", "a\n".repeat(5000));
    let error = fixture
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
async fn what_is_not_found_is_reported_with_a_hint() {
    let fixture = FileFixture::with("a", "fn  main() {\r\n\tbody();\r\n}\r\n");
    let cases = [
        ("nothing", 0, "'nothing' not found in a from line 0"),
        (
            "fn  main",
            2,
            "'fn  main' not found in a from line 2; it is at line 0, before `start`",
        ),
        (
            "bodi();",
            0,
            "'bodi();' not found in a from line 0; the most similar text is at line 1 (starting at 0):\n\tbody();",
        ),
        (
            "fn main() {\n  doby();",
            0,
            "'fn main() {\n  doby();' not found in a from line 0; the most similar text is at line 0 (starting at \
             0):\nfn  main() {\n\tbody();",
        ),
    ];
    for (old, start, expected) in cases {
        let edit = json!({"path": "a", "old": old, "new": "x", "start": start});
        assert_eq!(fixture.edit(edit).await.unwrap_err(), expected);
    }
    let long = fixture
        .edit(json!({"path": "a", "old": "é".repeat(5000), "new": ""}))
        .await
        .unwrap_err();
    assert!(long.chars().count() < 300, "{long}");
}

#[tokio::test]
async fn other_whitespace_is_tolerated_where_the_match_is_unique() {
    let cases = [
        // Other line endings.
        (
            "a {\r\n\tb\r\n}\r\n",
            "{\n\tb",
            "(\n\tc",
            "a (\r\n\tc\r\n}\r\n",
        ),
        ("one\ntwo\n", "one\r\ntwo", "1\r\n2", "1\n2\n"),
        // Tabs for spaces, also in new lines that are indented further.
        (
            "if a:\n\tb()\n\tc()\n",
            "if a:\n    b()\n",
            "if a:\n    if b:\n        b()\n",
            "if a:\n\tif b:\n\t    b()\n\tc()\n",
        ),
        // Other indentation.
        (
            "  x {\n    y  ( 1 );\n  }\n",
            "x {\n  y ( 1 );  \n}",
            "x {\n  z();\n\n}",
            "  x {\n    z();\n\n  }\n",
        ),
    ];
    for (content, old, new, expected) in cases {
        let fixture = FileFixture::with("a", content);
        let edit = json!({"path": "a", "old": old, "new": new});
        let answer = fixture.edit(edit).await.unwrap();
        assert!(
            answer.ends_with(" (line 0 matched with other whitespace)"),
            "{answer}"
        );
        assert_eq!(String::from_utf8(fixture.content("a")).unwrap(), expected);
    }
    // Two places, and lines whose indentation contradicts.
    for (content, old, problem) in [
        (
            "\ta b\n  a b\n",
            "a  b",
            "occurs 2 times in a, at lines 0, 1 ",
        ),
        ("a\n    b\n", "a\nb", "the most similar text is at line 0"),
        (" \n", "\t\n", "not found"),
    ] {
        let fixture = FileFixture::with("a", content);
        let edit = json!({"path": "a", "old": old, "new": "x"});
        let error = fixture.edit(edit).await.unwrap_err();
        assert!(error.contains(problem), "{old:?}: {error}");
        assert_eq!(fixture.content("a"), content.as_bytes());
    }
}

#[tokio::test]
async fn several_edits_are_made_together_or_not_at_all() {
    let fixture = FileFixture::with("a", "one\ntwo\nthree\nthree\n");
    let edit =
        |edits: Value| fixture.edit(json!({"path": "a", "old": "one", "new": "1", "edits": edits}));
    let missing = edit(json!([{"old": "two", "new": "2"}, {"old": "four", "new": "4"}])).await;
    let missing = missing.unwrap_err();
    assert!(missing.starts_with("edit 3: "), "{missing}");
    assert!(missing.ends_with("; no edit was made"), "{missing}");
    let invalid = edit(json!([{"old": "two"}])).await.unwrap_err();
    assert_eq!(
        invalid,
        "invalid edit 2: expected an object with `old` and `new`"
    );
    assert_eq!(fixture.content("a"), b"one\ntwo\nthree\nthree\n");
    let edits = json!([{"old": "1", "new": "I"}, {"old": "three", "new": "3", "all": true}]);
    let answer = edit(edits).await.unwrap();
    assert!(answer.ends_with("/a (3 edits, 2 replacements)"), "{answer}");
    assert_eq!(fixture.content("a"), b"I\ntwo\n3\n3\n");
}

// W-29
#[tokio::test]
async fn an_edit_that_says_nothing_is_refused() {
    let fixture = FileFixture::with("a", "one");
    let empty = fixture
        .edit(json!({"path": "a", "old": "", "new": "x"}))
        .await
        .unwrap_err();
    assert!(empty.starts_with("`old` is empty"), "{empty}");
    let same = fixture
        .edit(json!({"path": "a", "old": "one", "new": "one"}))
        .await
        .unwrap_err();
    assert!(same.starts_with("`old` and `new` are equal"), "{same}");
    let missing = fixture
        .edit(json!({"path": "b", "old": "one", "new": "two"}))
        .await
        .unwrap_err();
    assert!(missing.contains("No such file"), "{missing}");
    assert_eq!(fixture.content("a"), b"one");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // W-29
    #[test]
    fn editing_a_unique_text_is_the_replacement_of_its_bytes(
        before in "[ab\r\n\u{2028}é\u{feff} \t]{0,60}",
        // A marker that does not occur in the surrounding text.
        old in "x[ab\r\n\u{2028}é \t]{0,8}y",
        after in "[ab\r\n\u{2028}é\u{feff} \t]{0,60}",
        new in ".{0,20}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let fixture = FileFixture::with("a", format!("{before}{old}{after}"));
        runtime.block_on(fixture.edit(json!({"path": "a", "old": old, "new": new}))).unwrap();
        prop_assert_eq!(fixture.content("a"), format!("{before}{new}{after}").into_bytes());
    }
}

#[tokio::test]
async fn edits_at_the_same_time_do_not_undo_each_other() {
    let words: Vec<_> = (0..8).map(|number| format!("word{number};")).collect();
    let fixture = FileFixture::with("a", words.concat());
    let edits = words
        .iter()
        .map(|word| fixture.edit(json!({"path": "a", "old": word, "new": "."})));
    for outcome in futures_util::future::join_all(edits).await {
        outcome.unwrap();
    }
    assert_eq!(fixture.content("a"), b"........");
}

// W-37
#[tokio::test]
async fn confined_tools_stay_in_the_workspace_whatever_the_path_says() {
    let fixture = FileFixture::confined();
    let outside = fixture.dir.path().canonicalize().unwrap().join("user");
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::create_dir(fixture.path("sub")).unwrap();
    symlink(outside.join("secret"), fixture.path("file-link")).unwrap();
    symlink("../user", fixture.path("dir-link")).unwrap();
    symlink("dir-link", fixture.path("link-to-link")).unwrap();
    symlink(outside.join("new"), fixture.path("dangling")).unwrap();
    symlink(outside.join("new-dir"), fixture.path("dangling-dir")).unwrap();
    symlink("/proc/self/cwd", fixture.path("cwd-link")).unwrap();
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
        format!("{}/../user/secret", fixture.path("").display()),
        format!(
            "{}2/secret",
            fixture.path("").display().to_string().trim_end_matches('/')
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
            fixture.read(json!({"path": path})).await,
            fixture.write(&path, "owned").await,
            fixture
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
    let fixture = FileFixture::confined();
    symlink("real", fixture.path("link")).unwrap();
    fixture.write("link", "through a link").await.unwrap();
    fixture.write("new/../other/a", "b").await.unwrap();
    fixture.write(fixture.path("abs"), "c").await.unwrap();
    assert_eq!(
        fixture.read(json!({"path": "real"})).await.unwrap(),
        "through a link"
    );
    assert_eq!(fixture.read(json!({"path": "other/a"})).await.unwrap(), "b");
    // The workspace path may contain a symbolic link.
    symlink(fixture.path(""), fixture.dir.path().join("alias")).unwrap();
    let context = fixture.context();
    context.state().set(
        "_runtime_workspace",
        fixture.dir.path().join("alias").to_str().unwrap(),
    );
    let read = fixture.call_in(context, "fs.read", json!({"path": "abs"}));
    assert_eq!(read.await.unwrap(), "c");
}

// W-37: independent of the settings.
#[tokio::test]
async fn the_tools_of_a_member_are_confined() {
    let fixture = FileFixture::of_a_member();
    let error = fixture
        .read(json!({"path": "/etc/passwd"}))
        .await
        .unwrap_err();
    assert!(error.contains("outside the workspace"), "{error}");
    fixture.write("inside", "x").await.unwrap();
}

// W-37: the sender is not authenticated, so the tools are confined as for a guest.
#[tokio::test]
async fn the_tools_of_an_unknown_sender_are_confined() {
    let fixture = FileFixture::new();
    let turn = Turn::detached(
        &fixture.framework,
        Envelope::from_text("hi"),
        fixture.state(),
    );
    assert_confined(&fixture, turn).await;
}

// W-37: the role of the sender applies, also in a nested run and for a command that steers another user's turn.
#[tokio::test]
async fn nested_runs_and_steered_commands_have_the_rights_of_their_sender() {
    let owner = FileFixture::new();
    let steered = owner.turn(owner.state()).with_sender(Arc::new(member()));
    assert_confined(&owner, nested(&steered)).await;
    assert_confined(&owner, steered).await;

    let member = FileFixture::of_a_member();
    assert_confined(&member, nested(&member.turn(member.state()))).await;

    let context = ToolContext::new(nested(&owner.turn(owner.state())));
    let read = owner.call_in(context, "fs.read", json!({"path": "/etc/passwd"}));
    assert!(!read.await.unwrap().is_empty());
}

pub(crate) fn member() -> Sender {
    Sender {
        role: Role::Member,
        ..Sender::default()
    }
}

/// The turn of a subagent.
fn nested(turn: &Turn) -> Turn {
    let session_id = turn.session_id().clone();
    let store = Arc::new(MemoryStore::new());
    let tape = Tape::new(store, TapeName::new("work__nested").unwrap());
    let tape = TurnTape::new(tape, turn.framework(), &session_id, None);
    turn.nested_run(session_id, turn.state().deep_copy(), tape)
}

async fn assert_confined(fixture: &FileFixture, turn: Turn) {
    let outside = fixture.dir.path().join("user/new");
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
        let error = fixture.call_in(context, tool, arguments).await.unwrap_err();
        assert!(error.contains("outside the workspace"), "{tool}: {error}");
    }
    assert!(!outside.exists());
    let context = ToolContext::new(turn);
    let inside = json!({"path": "inside", "content": "x"});
    fixture.call_in(context, "fs.write", inside).await.unwrap();
}
