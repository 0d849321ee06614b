//! The tools `fs.list`, `fs.glob`, `fs.grep` and `todo`.

use std::{fs, os::unix::fs::symlink};

use bub_kernel::ChannelMessage;
use bub_testkit::model::{ModelServer, Reply};
use serde_json::json;

use crate::{
    fs_tools::FileFixture,
    harness::AgentFixture,
    turn_loop::{entries, events},
};

/// Creates files in the workspace of a fixture.
fn write_files(fixture: &FileFixture, files: &[(&str, &str)]) {
    for (name, content) in files {
        let path = fixture.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

const FILES: &[(&str, &str)] = &[
    (".git/HEAD", "ref: main"),
    (".gitignore", "*.log\n/target/\n!keep.log\n"),
    (".env", "PASSWORD=hello"),
    ("b.rs", "fn main() {\n    hello();\n}\n"),
    ("keep.log", "hello\n"),
    ("lost.log", "hello\n"),
    ("src/.ignore", "generated.rs\n"),
    ("src/generated.rs", "hello\n"),
    ("src/lib.rs", "//! Says Hello.\r\npub fn hello() {}\r\n"),
    (
        "src/deep/down/a.txt",
        "one\ntwo hello\nthree\nfour\nfive hello\nhello hello\n",
    ),
    ("target/x.rs", "hello\n"),
];

#[tokio::test]
async fn listing_shows_names_in_order_without_what_is_ignored() {
    let fixture = FileFixture::new();
    write_files(&fixture, FILES);
    symlink("b.rs", fixture.path("link")).unwrap();
    let list = |arguments| fixture.call("fs.list", arguments);
    assert_eq!(
        list(json!({})).await.unwrap(),
        ".env\n.gitignore\nb.rs\nkeep.log\nlink@\nsrc/"
    );
    assert_eq!(
        list(json!({"path": "src", "depth": 9})).await.unwrap(),
        "src/.ignore\nsrc/deep/\nsrc/deep/down/\nsrc/deep/down/a.txt\nsrc/lib.rs"
    );
    // A directory that is named is listed, even if it is ignored.
    assert_eq!(
        list(json!({"path": "./target"})).await.unwrap(),
        "target/x.rs"
    );
    assert_eq!(list(json!({"path": "b.rs"})).await.unwrap(), "b.rs");
    let error = list(json!({"path": "none"})).await.unwrap_err();
    assert!(error.contains("No such file"), "{error}");
    fs::create_dir(fixture.path("empty")).unwrap();
    assert_eq!(
        list(json!({"path": "empty"})).await.unwrap(),
        "(nothing found)"
    );
    for number in 0..600 {
        fs::write(fixture.path(&format!("empty/{number:03}")), "").unwrap();
    }
    let text = list(json!({"path": "empty"})).await.unwrap();
    let note = "\nempty/499\n[only the first 500 are listed; use a narrower path or pattern]";
    assert!(text.ends_with(note), "{text}");
}

#[tokio::test]
async fn patterns_find_files_at_any_depth_or_below_a_directory() {
    let fixture = FileFixture::new();
    write_files(&fixture, FILES);
    for (pattern, path, expected) in [
        ("*.rs", ".", "b.rs\nsrc/lib.rs"),
        (
            "./src/**/*.{rs,txt}",
            ".",
            "src/deep/down/a.txt\nsrc/lib.rs",
        ),
        ("src/*", ".", "src/.ignore\nsrc/lib.rs"),
        ("**/a.txt", "src", "src/deep/down/a.txt"),
        ("*.py", ".", "(nothing found)"),
    ] {
        let arguments = json!({"pattern": pattern, "path": path});
        let found = fixture.call("fs.glob", arguments).await.unwrap();
        assert_eq!(found, expected, "{pattern}");
    }
    let error = fixture
        .call("fs.glob", json!({"pattern": "a{b"}))
        .await
        .unwrap_err();
    assert!(error.starts_with("invalid pattern: "), "{error}");
}

#[tokio::test]
async fn searching_returns_lines_with_their_numbers() {
    let fixture = FileFixture::new();
    write_files(&fixture, FILES);
    fs::write(fixture.path("binary"), b"hello\0").unwrap();
    for (arguments, expected) in [
        (
            json!({"pattern": "hello"}),
            ".env\n0: PASSWORD=hello\nb.rs\n1:     hello();\nkeep.log\n0: hello\nsrc/deep/down/a.txt\n1: two hello\n…\n4: five hello\n5: hello hello\nsrc/lib.rs\n1: pub fn hello() {}",
        ),
        (
            json!({"pattern": "^.* hello\\.$", "ignore_case": true, "glob": "*.rs"}),
            "src/lib.rs\n0: //! Says Hello.",
        ),
        (
            json!({"pattern": "two", "path": "src/deep/down/a.txt", "context_lines": 1}),
            "src/deep/down/a.txt\n0: one\n1: two hello\n2: three",
        ),
        (json!({"pattern": "absent"}), "(nothing found)"),
    ] {
        let found = fixture.call("fs.grep", arguments.clone()).await.unwrap();
        assert_eq!(found, expected, "{arguments}");
    }
    let error = fixture
        .call("fs.grep", json!({"pattern": "a("}))
        .await
        .unwrap_err();
    assert_eq!(error, "invalid `pattern`: error: unclosed group");
    fs::write(fixture.path("many"), "x\n".repeat(500)).unwrap();
    let text = fixture
        .call("fs.grep", json!({"pattern": "^x$"}))
        .await
        .unwrap();
    let note = "\n199: x\n[only the first 200 matches are shown; use a narrower pattern or path]";
    assert!(text.ends_with(note), "{text}");
}

// L7
#[tokio::test]
async fn searching_reaches_no_file_that_cannot_be_read() {
    let fixture = FileFixture::of_a_member();
    write_files(&fixture, FILES);
    fs::write(fixture.path("server.key"), "hello").unwrap();
    let outside = fixture.dir.path().canonicalize().unwrap().join("user");
    fs::write(outside.join("secret"), "hello").unwrap();
    symlink(&outside, fixture.path("way-out")).unwrap();
    // Members see no dotfiles and no keys.
    let listed = fixture.call("fs.list", json!({"depth": 9})).await.unwrap();
    assert!(
        !listed.contains(".env") && !listed.contains("server.key"),
        "{listed}"
    );
    assert!(!listed.contains("way-out/"), "{listed}");
    let found = fixture
        .call("fs.grep", json!({"pattern": "hello"}))
        .await
        .unwrap();
    assert!(
        found.starts_with("b.rs\n") && !found.contains("secret"),
        "{found}"
    );
    for path in ["..", "../user", "/etc", "way-out", ".git"] {
        for (tool, arguments) in [
            ("fs.list", json!({"path": path})),
            ("fs.glob", json!({"path": path, "pattern": "*"})),
            ("fs.grep", json!({"path": path, "pattern": "."})),
        ] {
            fixture.call(tool, arguments).await.unwrap_err();
        }
    }
    // bub's home is out of reach for owners, too.
    let fixture = FileFixture::new();
    let home = fixture.dir.path().join("user/.bub");
    fs::create_dir_all(&home).unwrap();
    let arguments = json!({"path": home});
    fixture.call("fs.list", arguments).await.unwrap_err();
}

#[tokio::test]
async fn a_search_ends_when_its_turn_is_cancelled() {
    let fixture = FileFixture::new();
    write_files(&fixture, FILES);
    let context = fixture.context();
    context.cancel.cancel();
    let error = fixture
        .call_in(context, "fs.list", json!({}))
        .await
        .unwrap_err();
    assert_eq!(error, "listing was cancelled");
}

#[tokio::test]
async fn the_todo_list_is_on_the_tape_and_survives_a_handoff() {
    let server = ModelServer::start();
    let items = json!({"items": ["- [X] read  the code", "[~] fix it", "write tests"]});
    server.script(Reply::new().call("a", "todo", &items.to_string()));
    server.script(Reply::new().call("b", "tape_handoff", r#"{"summary": "half done"}"#));
    server.script(Reply::new().call("c", "todo", "{}"));
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let running = fixture.framework.open_scope().await.unwrap();
    let message = || ChannelMessage::new("s", "lab", "go");
    fixture.own_turn(message()).await.unwrap();
    let expected = ["[x] read the code", "[~] fix it", "[ ] write tests"];
    let recorded = events(&entries(&fixture, "s").await, "todo");
    assert_eq!(recorded, [json!({"items": expected})]);
    let requests = server.requests();
    let after = requests[2].json()["messages"].to_string();
    assert!(
        after.contains("half done") && after.contains("[~] fix it"),
        "{after}"
    );
    let last = requests[3].json()["messages"].to_string();
    assert!(last.contains(&expected.join("\\n")), "{last}");
    let command = ChannelMessage::new("s", "lab", ",todo");
    let shown = fixture.own_turn(command).await.unwrap().model_output;
    assert_eq!(shown, expected.join("\n"));
    running.close().await.unwrap();
}

// The tools beyond those of the Python version cost at most 400 tokens in each request.
#[tokio::test]
async fn the_additional_tools_are_cheap() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    let message = ChannelMessage::new("s", "lab", "go");
    fixture.own_turn(message).await.unwrap();
    let request = server.requests()[0].json();
    let size = |name: &str| {
        let mut tools = request["tools"].as_array().unwrap().iter();
        let tool = tools.find(|tool| tool["function"]["name"] == name).unwrap();
        tool.to_string().chars().count()
    };
    let sizes = ["fs_list", "fs_glob", "fs_grep", "todo"].map(|name| (name, size(name)));
    let tokens = sizes.iter().map(|(_, chars)| chars).sum::<usize>() / 4;
    assert!(tokens <= 400, "{tokens} tokens: {sizes:?}");
}
