//! Which files the tools of a sender may use.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bub_kernel::{ApprovalAnswer, ApprovalRequest, Role, ToolCaller, ToolContext, hooks};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;

use crate::fs_tools::{FileFixture, member};

/// Answers every question, and keeps it.
struct Answer {
    approve: bool,
    asked: Arc<Mutex<Vec<ApprovalRequest>>>,
}

#[hooks(crate = bub_kernel)]
impl Answer {
    async fn request_approval(&self, request: &ApprovalRequest) -> ApprovalAnswer {
        self.asked.lock().unwrap().push(request.clone());
        if self.approve {
            ApprovalAnswer::Approved
        } else {
            ApprovalAnswer::Denied(None)
        }
    }
}

/// An owner whose calls run in a profile. Questions get the answer `approve`.
fn in_profile(profile: &str, approve: bool) -> (FileFixture, Arc<Mutex<Vec<ApprovalRequest>>>) {
    let asked = Arc::<Mutex<Vec<ApprovalRequest>>>::default();
    let answer = Answer {
        approve,
        asked: Arc::clone(&asked),
    };
    let variables = [("BUB_SANDBOX_PROFILE", profile)];
    let fixture = FileFixture::make_with(&variables, |builder| builder.plugin("answer", answer));
    (fixture, asked)
}

fn user_dir(fixture: &FileFixture) -> PathBuf {
    fixture.dir.path().canonicalize().unwrap().join("user")
}

/// Creates bub's home with a config file and a tape. Returns its path.
fn bub_home(fixture: &FileFixture) -> PathBuf {
    let home = user_dir(fixture).join(".bub");
    fs::create_dir_all(home.join("tapes")).unwrap();
    fs::write(home.join("config.yml"), "policy: strict\n").unwrap();
    fs::write(home.join("tapes/a.jsonl"), "policy: strict\n").unwrap();
    home
}

/// Calls all three tools with a path. All must be refused with a text.
async fn assert_refused(fixture: &FileFixture, context: &ToolContext, path: &str, reason: &str) {
    let calls = [
        ("fs.read", json!({"path": path})),
        ("fs.write", json!({"path": path, "content": "owned"})),
        (
            "fs.edit",
            json!({"path": path, "old": "strict", "new": "owned"}),
        ),
    ];
    for (tool, arguments) in calls {
        let outcome = fixture.call_in(context.clone(), tool, arguments).await;
        let error = outcome.expect_err(path);
        assert!(error.contains(reason), "{tool} {path}: {error}");
    }
}

// A rename race read outside in 24 of 1,800 tries.
#[tokio::test]
async fn a_swapped_directory_never_leads_out_of_the_workspace() {
    let fixture = FileFixture::of_a_member();
    let outside = user_dir(&fixture);
    fs::write(outside.join("file"), "outside").unwrap();
    fs::create_dir(fixture.path("directory")).unwrap();
    fs::write(fixture.path("directory/file"), "inside").unwrap();
    symlink(&outside, fixture.path("link")).unwrap();
    let (directory, link) = (fixture.path("directory"), fixture.path("link"));
    let is_done = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let is_done = Arc::clone(&is_done);
        move || {
            while !is_done.load(Ordering::Relaxed) {
                let flags = RenameFlags::EXCHANGE;
                renameat_with(CWD, &directory, CWD, &link, flags).unwrap();
            }
        }
    });
    let (mut read, mut refused) = (0, 0);
    for number in 0..4000 {
        match fixture.read(json!({"path": "directory/file"})).await {
            Ok(text) => {
                assert_eq!(text, "inside", "try {number}");
                read += 1;
            }
            Err(_) => refused += 1,
        }
        if number % 8 == 0 {
            let _ = fixture.write("directory/new", "owned").await;
        }
    }
    is_done.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside");
    assert!(!outside.join("new").exists());
}

// `fs.write` could rewrite `config.yml` and undo the policy.
#[tokio::test]
async fn no_tool_reaches_bubs_home_whatever_the_path_says() {
    for profile in ["off", "workspace", "read-only"] {
        let (mut fixture, asked) = in_profile(profile, true);
        let home = bub_home(&fixture);
        symlink(&home, fixture.path("home-link")).unwrap();
        symlink(home.join("config.yml"), fixture.path("file-link")).unwrap();
        let open = fs::File::open(home.join("config.yml")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        let inner = home.strip_prefix("/").unwrap().display();
        let paths = [
            format!("{}/config.yml", home.display()),
            format!("{}/tapes/a.jsonl", home.display()),
            format!("{}/pairings.json", home.display()),
            format!("{}/new/deep/file", home.display()),
            "~/.bub/config.yml".into(),
            "~/.BUB/config.yml".into(),
            "~/.bub//./tapes/../config.yml".into(),
            "../user/.bub/config.yml".into(),
            "home-link/config.yml".into(),
            "home-link/new".into(),
            "file-link".into(),
            format!("/proc/self/root/{inner}/config.yml"),
            format!("/proc/self/fd/{number}"),
            format!("/dev/fd/{number}"),
        ];
        let roles = [Role::Owner, Role::Member, Role::Guest];
        let callers = [ToolCaller::Model, ToolCaller::User];
        for (role, caller) in roles
            .into_iter()
            .flat_map(|role| callers.map(|c| (role, c)))
        {
            fixture.sender.role = role;
            let context = ToolContext {
                caller,
                ..fixture.context()
            };
            for path in &paths {
                let reason = match role {
                    Role::Owner => "belongs to bub itself",
                    Role::Member | Role::Guest => "outside the workspace",
                };
                assert_refused(&fixture, &context, path, reason).await;
            }
        }
        let text = fs::read_to_string(home.join("config.yml")).unwrap();
        assert_eq!(text, "policy: strict\n", "{profile}");
        assert!(!home.join("new").exists() && asked.lock().unwrap().is_empty());
    }
}

// A mount shows the same directory at another path. Its identity stays.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_second_mount_of_bubs_home_is_refused() {
    let (fixture, _) = in_profile("off", true);
    let home = bub_home(&fixture);
    fs::create_dir(fixture.path("mount")).unwrap();
    let mount = |arguments: &[&std::ffi::OsStr]| {
        let mut command = std::process::Command::new(arguments[0]);
        let status = command.args(&arguments[1..]).status();
        status.is_ok_and(|status| status.success())
    };
    let target = fixture.path("mount");
    if !mount(&[
        "mount".as_ref(),
        "--bind".as_ref(),
        home.as_ref(),
        target.as_ref(),
    ]) {
        return; // Only root can mount.
    }
    let context = fixture.context();
    for path in ["mount/config.yml", "mount/tapes/a.jsonl"] {
        assert_refused(&fixture, &context, path, "belongs to bub itself").await;
    }
    let error = fixture.write("mount/new/deep/file", "owned").await;
    assert!(error.unwrap_err().contains("belongs to bub itself"));
    assert!(mount(&["umount".as_ref(), target.as_ref()]));
    assert!(!home.join("new").exists());
}

// Skill roots below bub's home can be read, and not changed.
#[tokio::test]
async fn skills_below_bubs_home_stay_readable() {
    for profile in ["off", "workspace"] {
        let (fixture, _) = in_profile(profile, false);
        let home = bub_home(&fixture);
        // The directory with the user's skills may be a link to bub's home.
        let skills = home.join("skills");
        fs::create_dir_all(skills.join("demo")).unwrap();
        fs::write(skills.join("demo/SKILL.md"), "demo").unwrap();
        fs::create_dir(user_dir(&fixture).join(".agents")).unwrap();
        symlink(&skills, user_dir(&fixture).join(".agents/skills")).unwrap();
        for path in [skills.to_str().unwrap(), "~/.agents/skills"] {
            let path = format!("{path}/demo/SKILL.md");
            let text = fixture.read(json!({"path": path})).await;
            assert_eq!(text.unwrap(), "demo", "{profile}");
            let error = fixture.write(&path, "x").await.unwrap_err();
            assert!(error.contains("belongs to bub itself"), "{error}");
        }
    }
}

// L7: the file tools obey the profile of the commands.
#[tokio::test]
async fn the_profile_workspace_decides_what_is_read_and_written() {
    let (fixture, asked) = in_profile("workspace", false);
    let user = user_dir(&fixture);
    fs::create_dir(user.join(".ssh")).unwrap();
    for name in ["notes", ".ssh/id_ed25519"] {
        fs::write(user.join(name), "strict").unwrap();
    }
    let context = fixture.context();
    for path in [
        "~/notes",
        "~/.ssh/id_ed25519",
        "/etc/shadow",
        "/root/x",
        "/home/x",
        "/var/log/x",
    ] {
        assert_refused(
            &fixture,
            &context,
            path,
            "the sandbox (profile `workspace`)",
        )
        .await;
    }
    assert_eq!(
        asked.lock().unwrap().len(),
        18,
        "the owner is asked about each"
    );
    assert!(
        !fixture
            .read(json!({"path": "/etc/passwd"}))
            .await
            .unwrap()
            .is_empty()
    );
    let error = fixture.write("/etc/bub-test", "x").await.unwrap_err();
    assert!(error.contains("the sandbox"), "{error}");
    fixture.write("new/file", "x").await.unwrap();
    assert_eq!(fs::read(fixture.path("new/file")).unwrap(), b"x");
    // A symbolic link inside the workspace works.
    symlink("new/file", fixture.path("link")).unwrap();
    assert_eq!(fixture.read(json!({"path": "link"})).await.unwrap(), "x");
}

// Commands see their private temporary directory as `/tmp`.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_temporary_directory_is_that_of_the_sessions_commands() {
    let (fixture, _) = in_profile("workspace", false);
    let name = format!("/tmp/bub-fs-access-{}", std::process::id());
    let answer = fixture.write(&name, "private").await.unwrap();
    assert!(!std::path::Path::new(&name).exists());
    assert_eq!(answer, format!("wrote: {name}"));
    let missing = fixture.read(json!({"path": "/tmp/missing"})).await;
    let error = missing.unwrap_err();
    assert!(error.starts_with("cannot read /tmp/missing: "), "{error}");
    let edit = json!({"path": name, "old": "private", "new": "private"});
    fixture.call("fs.edit", edit).await.unwrap_err();
    let edit = json!({"path": name, "old": "priv", "new": "Priv"});
    let edited = fixture.call("fs.edit", edit).await.unwrap();
    assert_eq!(edited, format!("edited: {name}"));
    assert_eq!(
        fixture.read(json!({"path": name})).await.unwrap(),
        "Private"
    );
    let error = fixture.read(json!({"path": "/tmp/../etc/shadow"})).await;
    error.unwrap_err();
    let (read_only, _) = in_profile("read-only", false);
    read_only.write(&name, "private").await.unwrap();
}

// The protected paths are those of the sandbox.
#[tokio::test]
async fn protected_files_can_be_read_and_not_written() {
    let protected = [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git/commondir",
        ".git/info/exclude",
        ".GIT/hooks/pre-commit",
        ".env",
        "AGENTS.md",
        "CLAUDE.md",
        ".agents/skills/x/SKILL.md",
        "mcp.json",
    ];
    let (fixture, asked) = in_profile("workspace", false);
    fs::write(fixture.path("AGENTS.md"), "rules").unwrap();
    symlink("AGENTS.md", fixture.path("link")).unwrap();
    for path in protected.into_iter().chain(["link"]) {
        let error = fixture.write(path, "owned").await.unwrap_err();
        assert!(error.contains("the file is protected"), "{path}: {error}");
    }
    assert!(!fixture.path(".git").exists() && !fixture.path(".agents").exists());
    assert_eq!(
        fixture.read(json!({"path": "link"})).await.unwrap(),
        "rules"
    );
    fixture.write("src/main.rs", "fn main() {}").await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), protected.len() + 1);

    let (fixture, _) = in_profile("read-only", false);
    for path in ["a", "AGENTS.md"] {
        let error = fixture.write(path, "owned").await.unwrap_err();
        assert!(error.contains("profile `read-only`"), "{path}: {error}");
    }
    let (fixture, _) = in_profile("off", false);
    fixture.write("AGENTS.md", "rules").await.unwrap();
}

// What git runs outside is protected, whichever repository names it. A repository that is disabled stays so.
#[tokio::test]
async fn what_git_runs_cannot_be_written() {
    let (fixture, _) = in_profile("workspace", false);
    let config = "[include]\npath = ../../included\n[core]\nworktree = ../../tree\nhooksPath = h\n[alias]\nq = !./run\n";
    for (name, text) in [
        ("nested/.git/HEAD", "ref: refs/heads/main"),
        ("nested/.git/config", config),
        ("tree/file", ""),
        ("new/.git/HEAD.sandbox-1", "ref: refs/heads/main"),
        ("bare.git/objects/x", ""),
        ("bare.git/refs/x", ""),
    ] {
        let path = fixture.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for path in [
        "included",
        "tree/h/pre-commit",
        "tree/run",
        "nested/run",
        "nested/.git/description",
        "new/.git/HEAD",
        "new/.git",
        "bare.git/HEAD",
    ] {
        let error = fixture.write(path, "owned").await.unwrap_err();
        assert!(error.contains("the file is protected"), "{path}: {error}");
    }
    for path in ["tree/file", "nested/file", "bare.git/description", "run"] {
        fixture.write(path, "text").await.unwrap();
    }
    // What cannot be protected from commands is not written by tools, either.
    fs::write(fixture.path("included"), "[core]\nhooksPath = link/h\n").unwrap();
    symlink("..", fixture.path("nested/link")).unwrap();
    let error = fixture.write("tree/other", "text").await.unwrap_err();
    assert!(error.contains("the file is protected"), "{error}");
}

// The owner is asked with the exact call, and the answer applies to one call.
#[tokio::test]
async fn an_owner_can_allow_a_call_outside_the_profile_once() {
    let (mut fixture, asked) = in_profile("workspace", true);
    let notes = user_dir(&fixture).join("notes");
    fixture.write(&notes, "x").await.unwrap();
    assert_eq!(fs::read(&notes).unwrap(), b"x");
    assert_eq!(fixture.read(json!({"path": "~/notes"})).await.unwrap(), "x");
    let questions = asked.lock().unwrap().clone();
    let [write, read] = questions.as_slice() else {
        panic!("{questions:?}")
    };
    assert_eq!(write.tool, "fs.write");
    assert_eq!(
        json!(write.arguments),
        json!({"path": notes, "content": "x"})
    );
    assert_eq!(json!(read.arguments), json!({"path": "~/notes"}));
    assert!(read.reason.contains("the sandbox"), "{}", read.reason);
    fixture.sender = member();
    let error = fixture.read(json!({"path": "~/notes"})).await.unwrap_err();
    assert!(error.contains("outside the workspace"), "{error}");
    assert_eq!(asked.lock().unwrap().len(), 2, "others are not asked");
}

#[tokio::test]
async fn members_see_no_dotfiles_and_no_keys() {
    let mut fixture = FileFixture::of_a_member();
    let hidden = [
        ".env",
        ".env.local",
        "prod.env",
        ".ssh/config",
        ".aws/credentials",
        ".git/config",
        "sub/.netrc",
        "server.pem",
        "Server.KEY",
        "id_rsa",
        "keys/id_ed25519",
        "credentials.json",
        "config/secrets.yml",
        "link",
        "deploy_key",
        "id_ed25519.bak",
        "id_rsa.old",
        "id_rsa~",
        "id_ecdsa.txt",
        "server.pem.bak",
        "server.key.old",
        "server.key.1",
        "production.env.bak",
        "env.local",
        "prod.env.production",
        "service-account.json",
        "client_secret.json",
        "client_secret_1.apps.example.com.json",
        "kubeconfig",
        "token.json",
        "token.txt",
        "auth.json",
        "auth.json.orig",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "prod.tfvars",
        "prod.auto.tfvars.json",
        "netrc",
        "private.gpg",
    ];
    symlink(".env", fixture.path("link")).unwrap();
    let visible = [
        "notes.md",
        "id_map.py",
        "src/secrets.rs",
        "keys/readme",
        "env",
        "env.py",
        "auth/token.rs",
        "id_list.txt",
        "id_rsa.pub",
        "notes.txt.bak",
        "package.json",
    ];
    for name in hidden.into_iter().chain(visible) {
        let path = fixture.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "strict").unwrap();
    }
    let context = fixture.context();
    for path in hidden {
        assert_refused(&fixture, &context, path, "visible only to owners").await;
    }
    for path in visible {
        fixture.read(json!({"path": path})).await.expect(path);
    }
    fixture.sender.role = Role::Owner;
    for path in hidden {
        fixture.read(json!({"path": path})).await.expect(path);
    }
}

#[tokio::test]
async fn members_read_no_file_that_contains_a_private_key() {
    let mut fixture = FileFixture::of_a_member();
    let begin = |kind: &str| format!("-----BEGIN {kind}-----\nstrict\n");
    let certificate = begin("CERTIFICATE");
    let hidden = [
        ("deploy", begin("OPENSSH PRIVATE KEY")),
        ("server.crt", certificate.clone() + &begin("PRIVATE KEY")),
        ("notes.md", begin("PGP PRIVATE KEY BLOCK")),
        (
            "gcp.yaml",
            format!("key: {}", begin("ENCRYPTED PRIVATE KEY")),
        ),
    ];
    let visible = [
        ("ca.crt", certificate),
        ("public", begin("PUBLIC KEY")),
        ("text", "a PRIVATE KEY strict\n".to_owned()),
    ];
    for (name, content) in hidden.iter().chain(&visible) {
        fs::write(fixture.path(name), content).unwrap();
    }
    for (name, _) in &hidden {
        let error = fixture.read(json!({"path": name})).await.unwrap_err();
        assert!(error.contains("visible only to owners"), "{name}: {error}");
    }
    for (name, content) in &visible {
        let read = fixture.read(json!({"path": name})).await.unwrap();
        assert!(read.contains("strict"), "{name}: {content}: {read}");
    }
    let search = json!({"pattern": "strict"});
    let found = fixture.call("fs.grep", search.clone()).await.unwrap();
    for (name, _) in &hidden {
        assert!(!found.contains(name), "{name}: {found}");
    }
    for (name, _) in &visible {
        assert!(found.contains(name), "{name}: {found}");
    }
    fixture.sender.role = Role::Owner;
    let found = fixture.call("fs.grep", search).await.unwrap();
    for (name, _) in &hidden {
        fixture.read(json!({"path": name})).await.expect(name);
        assert!(found.contains(name), "{name}: {found}");
    }
}

// Also if a rule allows the tools.
#[tokio::test]
async fn a_workspace_with_private_files_is_closed_to_members() {
    let mut fixture = FileFixture::of_a_member();
    let home = bub_home(&fixture);
    let user = user_dir(&fixture);
    fs::write(user.join("notes"), "strict").unwrap();
    for workspace in [user.as_path(), user.parent().unwrap(), &home] {
        let context = fixture.context();
        context
            .state()
            .set("_runtime_workspace", workspace.to_str().unwrap());
        assert_refused(&fixture, &context, "notes", "only owners can use files").await;
        let bash = fixture.call_in(context, "bash", json!({"cmd": "echo hi"}));
        let error = bash.await.unwrap_err();
        assert!(
            error.contains("only owners can use files and commands"),
            "{error}"
        );
    }
    fixture.sender.role = Role::Owner;
    let context = fixture.context();
    context
        .state()
        .set("_runtime_workspace", user.to_str().unwrap());
    let read = fixture.call_in(context.clone(), "fs.read", json!({"path": "notes"}));
    assert_eq!(read.await.unwrap(), "strict");
    assert_refused(
        &fixture,
        &context,
        ".bub/config.yml",
        "belongs to bub itself",
    )
    .await;
}

// Commands there could change what bub itself reads.
#[tokio::test]
async fn no_command_runs_in_bubs_home() {
    let (fixture, _) = in_profile("workspace", true);
    let home = bub_home(&fixture);
    fs::create_dir_all(home.join("skills/a")).unwrap();
    for workspace in [home.clone(), home.join("skills/a")] {
        let context = fixture.context();
        context
            .state()
            .set("_runtime_workspace", workspace.to_str().unwrap());
        let bash = fixture.call_in(context, "bash", json!({"cmd": "touch planted"}));
        let error = bash.await.unwrap_err();
        assert!(
            error.contains("the workspace is in bub's own data"),
            "{error}"
        );
        assert!(
            error.contains("choose another directory with `-w DIR`"),
            "{error}"
        );
        assert!(!workspace.join("planted").exists());
    }
}

// bub's own memory and environment contain its secrets.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn no_tool_reads_the_environment_of_a_process() {
    let (fixture, _) = in_profile("off", true);
    let own = format!("/proc/{}/environ", std::process::id());
    for path in [
        "/proc/self/environ",
        "/proc/thread-self/environ",
        "/proc/1/environ",
        &own,
    ] {
        let error = fixture.read(json!({"path": path})).await.unwrap_err();
        assert!(error.contains("belongs to a process"), "{path}: {error}");
    }
    fixture
        .read(json!({"path": "/proc/version"}))
        .await
        .unwrap();
}
