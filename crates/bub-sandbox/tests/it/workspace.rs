//! L7: what a command cannot leave behind in the workspace, and what git can do there.

use std::{fs, os::unix::fs::symlink, process::Output};

use bub_sandbox::SandboxProfile;

use crate::harness::{SECRET, SandboxFixture};

/// Runs a script confined, for each user, in a workspace that `prepare` changed. Passes the fixture and the output on.
fn for_each_run(
    prepare: impl Fn(&SandboxFixture),
    script: &str,
    check: impl Fn(&SandboxFixture, &Output),
) {
    for fixture in SandboxFixture::for_each_user() {
        prepare(&fixture);
        fixture.give_home();
        let output = fixture.run(&fixture.confinement(SandboxProfile::Workspace), script);
        check(&fixture, &output);
    }
}

fn git(fixture: &SandboxFixture, arguments: &str) {
    let identity = "-c user.name=a -c user.email=a@b -c init.defaultBranch=main";
    let output = fixture.run_outside(&format!("git {identity} {arguments}"));
    assert!(output.status.success(), "{output:?}");
}

/// Replaces the incomplete repository of the fixture by a real one with a commit.
fn create_repository(fixture: &SandboxFixture) {
    fs::remove_dir_all(fixture.path("home/work/.git")).unwrap();
    git(fixture, "init -q");
    git(fixture, "add file");
    git(fixture, "commit -q -m first");
}

// A shell, git and other programs of the user follow the links.
#[test]
fn files_that_the_home_directory_links_to_are_protected() {
    for_each_run(
        |fixture| {
            let home = fixture.path("home");
            fs::create_dir_all(home.join(".config")).unwrap();
            fs::create_dir_all(home.join("work/fish")).unwrap();
            fs::write(home.join("work/bashrc"), "").unwrap();
            for (target, link) in [
                ("work/bashrc", ".bashrc"),
                ("work/later", ".profile"),
                ("../work/fish", ".config/fish"),
            ] {
                symlink(target, home.join(link)).unwrap();
            }
        },
        "echo x >> bashrc; echo x > fish/config; mv bashrc other; touch later; echo x > notes.md",
        |fixture, output| {
            let work = fixture.path("home/work");
            assert_eq!(fs::read_to_string(work.join("bashrc")).unwrap(), "");
            assert!(work.join("notes.md").exists(), "{output:?}");
            for name in ["fish/config", "other", "later"] {
                assert!(!work.join(name).exists(), "{name}: {output:?}");
            }
        },
    );
}

// A link that a command replaces leads programs of the user elsewhere.
#[test]
fn every_link_on_the_way_to_a_protected_file_is_protected() {
    for_each_run(
        |fixture| {
            let home = fixture.path("home");
            let work = home.join("work");
            for name in [
                ".config/fish/conf.d",
                ".vim",
                "work/.agents",
                "work/.claude/skills/a",
                "work/skills",
                "work/d",
                "work/deep/er",
            ] {
                fs::create_dir_all(home.join(name)).unwrap();
            }
            for name in ["real", "x.fish", "vimrc", "end.md", "notes", "skills/SKILL.md"] {
                fs::write(work.join(name), "").unwrap();
            }
            for (target, link) in [
                ("work/l", ".bashrc"),
                ("real", "work/l"),
                ("../../../work/x.fish", ".config/fish/conf.d/x.fish"),
                ("../work/d/../vimrc", ".vim/vimrc"),
                ("../skills", "work/.agents/skills"),
                ("../../../notes", "work/.claude/skills/a/SKILL.md"),
                ("mid.md", "work/AGENTS.md"),
                ("end.md", "work/mid.md"),
            ] {
                symlink(target, home.join(link)).unwrap();
            }
        },
        "rm l; echo evil > l; rm mid.md; echo evil > mid.md; rmdir d; ln -s deep/er d; echo evil > deep/vimrc
        for n in real x.fish vimrc end.md notes skills/SKILL.md skills/new; do echo evil > $n; done",
        |fixture, output| {
            let home = fixture.path("home");
            for name in [
                ".bashrc",
                ".config/fish/conf.d/x.fish",
                "work/.agents/skills/SKILL.md",
                "work/.claude/skills/a/SKILL.md",
                "work/AGENTS.md",
            ] {
                let text = fs::read_to_string(home.join(name)).unwrap();
                assert_eq!(text, "", "{name}: {output:?}");
            }
            // The directory is gone, and no link is in its place.
            assert!(fs::read_to_string(home.join(".vim/vimrc")).is_err());
            assert!(!home.join("work/skills/new").exists(), "{output:?}");
        },
    );
}

// Protected paths that did not exist.
#[test]
fn a_protected_path_that_a_command_creates_gets_another_name() {
    let names = [
        "AGENTS.md",
        "mcp.json",
        ".agents",
        ".git/config.worktree",
        ".git/commondir",
    ];
    let script = "echo x > AGENTS.md; echo x > mcp.json; mkdir .agents; echo x > .git/config.worktree; echo x > .git/commondir; echo ok > notes.md";
    for_each_run(
        |_| {},
        script,
        |fixture, output| {
            let text = String::from_utf8_lossy(&output.stderr);
            for name in names {
                assert!(!fixture.path("home/work").join(name).exists(), "{name}");
                let note = format!("bub: the sandbox renamed `{name}` to `");
                assert!(text.contains(&note), "{name}: {text}");
            }
            assert!(fixture.path("home/work/notes.md").exists());
        },
    );
    let remove_hooks = |fixture: &SandboxFixture| {
        fs::remove_dir(fixture.path("home/work/.git/hooks")).unwrap();
    };
    let script = "mkdir .git/hooks && echo x > .git/hooks/pre-commit";
    for_each_run(remove_hooks, script, |fixture, _| {
        assert!(!fixture.path("home/work/.git/hooks").exists());
    });
}

#[test]
fn a_link_at_a_protected_path_stays_and_its_target_is_protected() {
    let link = |fixture: &SandboxFixture| {
        let work = fixture.path("home/work");
        fs::write(work.join("rules.md"), "rules").unwrap();
        symlink("rules.md", work.join("AGENTS.md")).unwrap();
    };
    let script =
        "! echo x > rules.md && ! echo x > AGENTS.md && rm AGENTS.md && echo evil > AGENTS.md";
    for_each_run(link, script, |fixture, output| {
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(fixture.path("home/work/AGENTS.md")).unwrap();
        assert_eq!(text, "rules");
        assert!(fixture.path("home/work/AGENTS.md").is_symlink());
    });
}

#[test]
fn a_repository_that_a_command_creates_works_and_runs_no_programs_outside() {
    let remove = |fixture: &SandboxFixture| {
        fs::remove_dir_all(fixture.path("home/work/.git")).unwrap();
    };
    let commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log -1";
    let script = format!("git init -q && git config user.name b && {commit}");
    for_each_run(remove, &script, |fixture, output| {
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        git(fixture, "log -1");
    });
    for evil in [
        "git config core.fsmonitor \"touch $HOME/owned\"",
        "printf '[core]\\n\\tbare = false # \\\\\\n[core] fsmonitor = x\\n' > .git/config",
        "printf '[include]\\n\\tpath = /x\\n' >> .git/config",
    ] {
        let script = format!("git init -q && {evil}");
        for_each_run(remove, &script, |fixture, output| {
            let head = fixture.path("home/work/.git/HEAD");
            assert!(!head.exists(), "{evil}: {output:?}");
        });
    }
    let script = "git init -q sub && echo x > sub/.git/hooks/pre-commit && ln -s /tmp other && mkdir f && echo 'gitdir: /tmp' > f/.git";
    for_each_run(remove, script, |fixture, output| {
        assert!(output.status.success(), "{output:?}");
        assert!(fixture.path("home/work/sub/.git/objects").exists());
        for name in ["HEAD", "config", "hooks"] {
            assert!(!fixture.path("home/work/sub/.git").join(name).exists());
        }
        let note = "renamed `sub/.git/HEAD` to `HEAD.sandbox-";
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(note), "{text}");
        assert!(text.contains(", also `config`, also `hooks`, so"), "{text}");
        assert!(!fixture.path("home/work/f/.git").exists());
    });
    for_each_run(remove, "ln -s sub .git", |fixture, _| {
        assert!(!fixture.path("home/work/.git").is_symlink());
    });
}

#[test]
fn nested_repositories_and_configured_hooks_are_protected() {
    let nested = |fixture: &SandboxFixture| {
        create_repository(fixture);
        git(fixture, "init -q a/b/nested");
        git(fixture, "config core.hooksPath .husky");
        fs::create_dir(fixture.path("home/work/.husky")).unwrap();
    };
    for script in [
        "git -C a/b/nested config core.fsmonitor ./evil",
        "echo x > a/b/nested/.git/hooks/pre-commit",
        "mv a/b/nested/.git a/b/other",
        "mv a/b a/c",
        "mv a c",
        "echo x > .husky/pre-commit",
        "mv .husky other",
    ] {
        for_each_run(nested, script, |_, output| {
            assert!(!output.status.success(), "{script}: {output:?}");
        });
    }
}

#[test]
fn a_home_directory_as_workspace_keeps_its_secrets_and_startup_files() {
    for fixture in SandboxFixture::for_each_user() {
        let home = fixture.path("home");
        for directory in [".bub", ".ssh", "data/bub", "dotfiles"] {
            fs::create_dir_all(home.join(directory)).unwrap();
            fs::write(home.join(directory).join("key"), SECRET).unwrap();
        }
        fs::write(home.join(".bashrc"), "").unwrap();
        symlink("dotfiles", home.join(".aws")).unwrap();
        fixture.give_home();
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.workspace.clone_from(&home);
        confinement.protected = vec![home.join(".env"), home.join(".bub")];
        confinement.hidden.push(home.join(".bub"));
        confinement.hidden.push(home.join("data/bub"));
        for script in [
            "cat ~/.bub/key",
            "cat ~/.ssh/key",
            "cat ~/data/bub/key",
            "cat ~/.aws/key",
            "cat ~/dotfiles/key",
            "mv ~/.bub ~/other",
            "mv ~/data ~/other",
            "echo x >> ~/.bashrc",
            "echo x > ~/.ssh/authorized_keys",
        ] {
            let output = fixture.run(&confinement, script);
            assert!(!output.status.success(), "{script}: {output:?}");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!text.contains(SECRET), "{script}: {text}");
        }
        let output = fixture.run(
            &confinement,
            "mkdir -p ~/.config/autostart; for n in .profile .newrc .config/autostart/x; do echo x > ~/$n; done; ln -s note ~/.linkrc; echo x > ~/note && cat ~/note",
        );
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        for name in [".profile", ".newrc", ".config", ".linkrc"] {
            assert!(!home.join(name).exists(), "{name}");
            let note = format!("bub: the sandbox renamed `{name}` to `");
            assert!(text.contains(&note), "{name}: {text}");
        }
        assert!(home.join("note").exists());
    }
}

#[test]
fn a_workspace_that_contains_the_home_directory_keeps_its_startup_files() {
    for fixture in SandboxFixture::for_each_user() {
        let home = fixture.path("home");
        fs::write(home.join(".bashrc"), "").unwrap();
        fs::create_dir(home.join(".ssh")).unwrap();
        fixture.give_home();
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.workspace = home.parent().unwrap().to_owned();
        confinement.hidden.push(fixture.path("records"));
        confinement.hidden.push(fixture.path("temp"));
        let names = || {
            let entries = fs::read_dir(&home).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let before = names();
        let script = "! echo x >> ~/.bashrc && ! mv ~/.bashrc ~/x && echo x > ~/.profile && cat ~/secret && echo x > ~/.vimrc && rm ~/work/file";
        let output = fixture.run(&confinement, script);
        assert!(output.status.success(), "{output:?}");
        let is_new = |name: &String| !before.contains(name) && !name.contains(".sandbox-");
        let new: Vec<_> = names().into_iter().filter(is_new).collect();
        assert!(new.is_empty(), "{new:?}");
        assert!(
            names()
                .iter()
                .any(|name| name.starts_with(".vimrc.sandbox-"))
        );
        assert_eq!(fs::read_to_string(home.join(".bashrc")).unwrap(), "");
    }
}

#[test]
fn git_reads_the_repository_of_a_worktree_and_of_a_subdirectory() {
    for fixture in SandboxFixture::for_each_user() {
        create_repository(&fixture);
        git(&fixture, "worktree add -q ../tree");
        fs::create_dir(fixture.path("home/work/sub")).unwrap();
        fixture.give_home();
        for workspace in ["home/tree", "home/work/sub"] {
            let mut confinement = fixture.confinement(SandboxProfile::Workspace);
            confinement.workspace = fixture.path(workspace);
            confinement.protected.clear();
            let cd = format!("cd '{}'", fixture.path(workspace).display());
            // The working directory of the fixture is not visible.
            let output = fixture.run_in(
                &fixture.path(workspace),
                &confinement,
                &format!("{cd} && git log -1 && git diff HEAD --stat -- . && ! cat ~/secret"),
            );
            assert!(output.status.success(), "{workspace}: {output:?}");
        }
        // A file in the workspace that names another directory opens nothing.
        fs::remove_dir_all(fixture.path("home/work/.git")).unwrap();
        fs::write(fixture.path("home/work/.git"), "gitdir: ../../outside\n").unwrap();
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let output = fixture.run(&confinement, "cat ../../outside/file");
        assert!(!output.status.success(), "{output:?}");
    }
}
