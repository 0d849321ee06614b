//! Instructions for one session: `sessions/<id>/AGENTS.md` in the home of bub.

use std::{fs, path::PathBuf, process::Command};

use bub_kernel::{ChannelMessage, Prompt};

use crate::harness::AgentFixture;

async fn system_prompt(fixture: &AgentFixture, session: &str) -> String {
    let turn = fixture
        .loaded(ChannelMessage::new(session, "cli", "hello"))
        .await;
    fixture
        .framework
        .system_prompt(&Prompt::from("hello"), &turn)
        .unwrap()
}

fn notes(fixture: &AgentFixture, directory: &str, text: &str) -> PathBuf {
    let file = fixture
        .dir
        .path()
        .join("home/sessions")
        .join(directory)
        .join("AGENTS.md");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    file
}

// Each session has its own directory inside `sessions`, whatever its id.
#[tokio::test]
async fn a_session_has_its_own_instructions() {
    let long = "x:".repeat(200);
    let rows = [
        ("telegram:-100", "telegram%3a-100"),
        ("cli:local", "cli%3alocal"),
        ("CLI:local", "%43%4c%49%3alocal"),
        ("..", "%2e%2e"),
        ("../../etc", "%2e%2e%2f%2e%2e%2fetc"),
        ("a%3ab", "a%253ab"),
        ("ä\0", "%c3%a4%00"),
        (
            &long,
            "x%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3ax%3a%h\
             HASH",
        ),
    ];
    let fixture = AgentFixture::new();
    fs::write(
        fixture.dir.path().join("workspace/AGENTS.md"),
        "workspace notes",
    )
    .unwrap();
    for (session, directory) in rows {
        let directory = directory.replace("HASH", &sha256(session));
        assert!(
            !system_prompt(&fixture, session).await.contains("own notes"),
            "{session}"
        );
        notes(
            &fixture,
            &directory,
            &format!("  own notes of {directory}\n"),
        );
        let prompt = system_prompt(&fixture, session).await;
        assert!(
            prompt.ends_with(&format!(
                "\n\n<workspace_instruction>\nworkspace notes\n</workspace_instruction>\n\n\
                 <session_instruction>\nown notes of {directory}\n</session_instruction>"
            )),
            "{session}: {prompt}"
        );
    }
}

fn sha256(text: &str) -> String {
    use sha2::Digest;
    format!("{:x}", sha2::Sha256::digest(text))
}

// Only regular files are read, up to a maximum size.
#[tokio::test]
async fn odd_files_are_no_instructions() {
    let fixture = AgentFixture::new();
    let plain = system_prompt(&fixture, "s").await;
    let file = notes(&fixture, "s", "");
    assert_eq!(system_prompt(&fixture, "s").await, plain);
    fs::write(&file, "x".repeat(1024 * 1024)).unwrap();
    let tags = "\n\n<session_instruction>\n\n</session_instruction>";
    assert_eq!(
        system_prompt(&fixture, "s").await.len(),
        plain.len() + tags.len() + 256 * 1024
    );
    fs::remove_file(&file).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(system_prompt(&fixture, "s").await, plain);
}

// L7: an untrusted workspace must not send other files of the user to the model.
#[tokio::test]
async fn notes_that_lead_out_of_the_workspace_are_not_read() {
    let fixture = AgentFixture::new();
    let plain = system_prompt(&fixture, "s").await;
    let at = |name: &str| fixture.dir.path().join(name);
    let link = at("workspace/AGENTS.md");
    fs::write(at("private"), "private key").unwrap();
    for target in [at("private"), "../private".into(), "/etc/passwd".into()] {
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(
            system_prompt(&fixture, "s").await,
            plain,
            "{}",
            target.display()
        );
        fs::remove_file(&link).unwrap();
    }
    fs::write(at("workspace/CLAUDE.md"), "Use tabs.").unwrap();
    std::os::unix::fs::symlink("CLAUDE.md", &link).unwrap();
    let prompt = system_prompt(&fixture, "s").await;
    assert!(prompt.ends_with("<workspace_instruction>\nUse tabs.\n</workspace_instruction>"));
}
