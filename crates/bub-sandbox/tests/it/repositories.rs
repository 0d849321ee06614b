//! L7: a command leaves nothing behind that git runs outside the sandbox, wherever in the workspace. Repositories that
//! run no programs work.

use std::{cell::RefCell, fs, path::Path, process::Output};

use bub_sandbox::{Confinement, SandboxProfile};

use crate::harness::SandboxFixture;

/// Variables that make git independent of the machine, and the program that must not run.
pub(crate) const SETUP: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=init.defaultBranch GIT_CONFIG_VALUE_0=main
export GIT_CONFIG_KEY_1=protocol.file.allow GIT_CONFIG_VALUE_1=always
W=$PWD; EVIL=\"touch $W/owned\"; HOOK=\"#!/bin/sh
touch $W/owned\"
evil_directory() { mkdir -p $1/objects $1/refs; echo ref: refs/heads/main > $1/HEAD; printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tworktree = %s\\n\\tfsmonitor = touch %s/owned\\n' ${2:-$W} $W > $1/config; }
";

/// A repository with a submodule, a working tree, a bare repository, a separate git directory and nested repositories.
pub(crate) const PREPARE: &str = "set -e; rm -rf .git; git init -q; git add file; git commit -qm first
git init -q origin; git -C origin commit -q --allow-empty -m one; git clone -q --bare origin bare.git
git submodule --quiet add ./origin sub; git commit -qm sub; git worktree add -q tree
mkdir data; git init -q --separate-git-dir data/store proj
git init -q a/b/c/d/e/f/g; git init -q node_modules/x; git init -q target/y";

pub(crate) fn script(
    fixture: &SandboxFixture,
    confinement: Option<&Confinement>,
    text: &str,
) -> Output {
    let text = format!("{SETUP}{text}");
    match confinement {
        Some(confinement) => fixture.run(confinement, &text),
        None => fixture.run_outside(&text),
    }
}

pub(crate) fn assert_outside(fixture: &SandboxFixture, text: &str) {
    let output = script(fixture, None, text);
    assert!(output.status.success(), "{text}: {output:?}");
}

/// Runs the cases in workspaces with the same content. Each user has a part of the cases.
fn for_each_workspace(cases: &[(&str, &str)], check: impl Fn(&Path, &str, &Output, &Output)) {
    let fixtures = SandboxFixture::for_each_user();
    for (number, fixture) in fixtures.iter().enumerate() {
        let work = fixture.path("home/work");
        assert_outside(fixture, PREPARE);
        assert_outside(fixture, "cp -a $W $W/../template");
        for (inside, outside) in cases.iter().skip(number).step_by(fixtures.len()) {
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            let confined = script(fixture, Some(&confinement), inside);
            let after = script(fixture, None, outside);
            check(&work, inside, &confined, &after);
            assert_outside(
                fixture,
                "find $W -mindepth 1 -delete; cp -a $W/../template/. $W",
            );
        }
    }
}

#[test]
fn nothing_that_a_command_plants_is_run_by_git_outside() {
    let cases = [
        // Repositories that exist, at any depth and in generated directories.
        ("git config core.fsmonitor \"$EVIL\"", "git status"),
        (
            "git -C a/b/c/d/e/f/g config core.fsmonitor \"$EVIL\"",
            "git -C a/b/c/d/e/f/g status",
        ),
        (
            "git -C node_modules/x config core.fsmonitor \"$EVIL\"",
            "git -C node_modules/x status",
        ),
        (
            "git -C target/y config core.fsmonitor \"$EVIL\"",
            "git -C target/y status",
        ),
        (
            "echo \"$HOOK\" > target/y/.git/hooks/pre-commit; chmod +x target/y/.git/hooks/*",
            "git -C target/y commit --allow-empty -m x",
        ),
        (
            "mv a/b/c/d old; mkdir -p a/b/c/d/e/f; git init -q a/b/c/d/e/f/g; git -C a/b/c/d/e/f/g config core.fsmonitor \"$EVIL\"",
            "git -C a/b/c/d/e/f/g status",
        ),
        // Submodules, working trees, separate git directories.
        (
            "evil_directory evil $W/sub; echo gitdir: ../evil > sub/.git",
            "git -C sub status",
        ),
        (
            "rm sub/.git; evil_directory sub/.git $W/sub",
            "git -C sub status",
        ),
        (
            "git -C sub config core.fsmonitor \"$EVIL\"",
            "git -C sub status; git status",
        ),
        (
            "echo \"$HOOK\" > .git/modules/sub/hooks/pre-commit; chmod +x .git/modules/sub/hooks/*",
            "git -C sub commit --allow-empty -m x",
        ),
        (
            "mv .git/modules other; evil_directory .git/modules/sub $W/sub",
            "git -C sub status",
        ),
        (
            "evil_directory evil $W/tree; echo $W/evil > .git/worktrees/tree/commondir",
            "git -C tree status",
        ),
        (
            "evil_directory evil $W/tree; rm -r .git/worktrees; mkdir -p .git/worktrees/tree; echo ref: refs/heads/tree > .git/worktrees/tree/HEAD; echo ../../../evil > .git/worktrees/tree/commondir; echo $W/tree/.git > .git/worktrees/tree/gitdir",
            "git -C tree status",
        ),
        (
            "evil_directory evil $W/tree; echo gitdir: ../evil > tree/.git",
            "git -C tree status",
        ),
        (
            "git -C proj config core.fsmonitor \"$EVIL\"",
            "git -C proj status",
        ),
        (
            "echo \"$HOOK\" > data/store/hooks/pre-commit; chmod +x data/store/hooks/*",
            "git -C proj commit --allow-empty -m x",
        ),
        (
            "mv data/store data/old; evil_directory data/store $W/proj",
            "git -C proj status",
        ),
        (
            "mv data old; evil_directory data/store $W/proj",
            "git -C proj status",
        ),
        // Bare repositories.
        (
            "echo \"$HOOK\" > bare.git/hooks/post-receive; chmod +x bare.git/hooks/*",
            "git push -q bare.git HEAD:refs/heads/other",
        ),
        (
            "git -C bare.git config core.bare false; git -C bare.git config core.worktree $W; git -C bare.git config core.fsmonitor \"$EVIL\"",
            "git -C bare.git status",
        ),
        (
            "git init -q --bare new.git; echo \"$HOOK\" > new.git/hooks/post-receive; chmod +x new.git/hooks/*",
            "git push -q new.git HEAD",
        ),
        ("evil_directory docs", "git -C docs status"),
        (
            "evil_directory node_modules/evil",
            "git -C node_modules/evil status",
        ),
        (
            "evil_directory a/b/c/d/e/f/evil",
            "git -C a/b/c/d/e/f/evil status",
        ),
        (
            "evil_directory docs; mv docs/objects docs/o; ln -s o docs/objects",
            "git -C docs status",
        ),
        // New repositories, also with data where the search does not look.
        (
            "git init -q new; git -C new config core.fsmonitor \"$EVIL\"",
            "git -C new status",
        ),
        (
            "git init -q new; git -C new config alias.st \"!$EVIL\"",
            "git -C new st",
        ),
        (
            "git init -q new; git -C new config core.hooksPath $W/h; mkdir h; echo \"$HOOK\" > h/pre-commit; chmod +x h/*",
            "git -C new commit --allow-empty -m x",
        ),
        (
            "git init -q new; git -C new config extensions.worktreeConfig true; printf '[core]\\n\\tfsmonitor = touch %s/owned\\n' $W > new/.git/config.worktree",
            "git -C new status",
        ),
        (
            "git init -q new; printf '[include]\\n\\tpath = x\\n' >> new/.git/config; printf '[core]\\n\\tfsmonitor = touch %s/owned\\n' $W > new/.git/x",
            "git -C new status",
        ),
        (
            "git init -q new; git -C new remote add o 'ext::sh -c touch% '$W'/owned'",
            "git -C new -c protocol.ext.allow=always fetch o",
        ),
        (
            "mkdir new; evil_directory .git/objects/evil $W/new; echo gitdir: ../.git/objects/evil > new/.git",
            "git -C new status",
        ),
        (
            "mkdir new; evil_directory /tmp/evil $W/new; echo gitdir: ../../../temp/evil > new/.git",
            "git -C new status",
        ),
        (
            "mkdir new; evil_directory /tmp/evil $W/new; ln -s ../../../temp/evil new/.git",
            "git -C new status",
        ),
        (
            "git worktree add -q new; evil_directory /tmp/evil $W/new; echo ../../../../../temp/evil > .git/worktrees/new/commondir",
            "git -C new status",
        ),
    ];
    let succeeded = RefCell::new(Vec::new());
    for_each_workspace(&cases, |work, inside, _, _| {
        if work.join("owned").exists() {
            succeeded.borrow_mut().push(inside.to_owned());
        }
    });
    let succeeded = succeeded.into_inner();
    assert!(succeeded.is_empty(), "{succeeded:#?}");
}

/// Waits in a command until another one has created a file in the workspace.
const WAIT: &str = "wait_for() { until [ -e $W/$1 ]; do sleep 0.01; done; }\n";

// A command that starts later must not take what an earlier one planted for old, and hide it when that one ends.
#[test]
fn commands_that_run_at_the_same_time_launder_nothing() {
    let cases = [
        // The planted part, what hides it, what brings it back, and what would run it.
        (
            "evil_directory d",
            "mv d/HEAD d/H",
            "mv d/H d/HEAD",
            "git -C d status",
        ),
        (
            "git init -q d; git -C d config core.fsmonitor \"$EVIL\"",
            "mv d/.git d/x",
            "mv d/x d/.git",
            "git -C d status",
        ),
        // A git directory that exists, and that the second command does not recognize.
        (
            "mv bare.git/HEAD bare.git/H",
            "echo \"$HOOK\" > bare.git/hooks/post-receive; chmod +x bare.git/hooks/*",
            "mv bare.git/H bare.git/HEAD",
            "git push -q bare.git HEAD:refs/heads/other",
        ),
        (
            "echo touch owned > .env",
            "true",
            "echo touch owned > .env",
            "test ! -e .env || sh .env",
        ),
        (
            "mkdir .agents; echo touch owned > .agents/x",
            "true",
            "mkdir .agents; echo touch owned > .agents/x",
            "test ! -e .agents || sh .agents/x",
        ),
    ];
    let mut succeeded = Vec::new();
    for fixture in SandboxFixture::for_each_user() {
        let work = fixture.path("home/work");
        assert_outside(&fixture, PREPARE);
        assert_outside(&fixture, "rm .env; cp -a $W $W/../template");
        for (plant, hide, show, outside) in cases {
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            let first = format!("{SETUP}{WAIT}{plant}; touch planted; wait_for hidden");
            let second =
                format!("{SETUP}{WAIT}touch second; {hide}; touch hidden; wait_for ended; {show}");
            let mut first = fixture.start_supervised(&confinement, &first);
            assert_outside(&fixture, &format!("{WAIT}wait_for planted"));
            let mut second = fixture.start_supervised(&confinement, &second);
            first.child.wait().unwrap();
            fs::write(work.join("ended"), "").unwrap();
            second.child.wait().unwrap();
            script(&fixture, None, outside);
            if work.join("owned").exists() {
                succeeded.push(plant);
            }
            assert_outside(
                &fixture,
                "find $W -mindepth 1 -delete; cp -a $W/../template/. $W",
            );
        }
    }
    assert!(succeeded.is_empty(), "{succeeded:#?}");
}

// The user changes the configuration while a command runs. The next command must obey.
#[test]
fn a_path_that_is_configured_while_a_command_runs_is_protected_from_the_next_one() {
    for fixture in SandboxFixture::for_each_user() {
        let work = fixture.path("home/work");
        assert_outside(&fixture, "rm -rf .git; git init -q");
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let first = format!("{SETUP}{WAIT}touch started; wait_for ended");
        let mut first = fixture.start_supervised(&confinement, &first);
        let configure = "wait_for started; git config core.hooksPath h; mkdir h";
        assert_outside(&fixture, &format!("{WAIT}{configure}"));
        let plant = "echo \"$HOOK\" > h/pre-commit && chmod +x h/pre-commit";
        let output = script(&fixture, Some(&confinement), plant);
        assert!(!output.status.success(), "{output:?}");
        fs::write(work.join("ended"), "").unwrap();
        first.child.wait().unwrap();
        assert!(work.join("h").is_dir());
        assert!(work.join(".git/config").is_file());
    }
}

#[test]
fn each_planted_program_would_run_without_the_sandbox() {
    let fixture = SandboxFixture::for_each_user().remove(0);
    assert_outside(&fixture, PREPARE);
    for attack in [
        "evil_directory docs; git -C docs status",
        "evil_directory evil $W/sub; echo gitdir: ../evil > sub/.git; git -C sub status",
        "evil_directory evil $W/tree; echo $W/evil > .git/worktrees/tree/commondir; git -C tree status",
    ] {
        assert_outside(&fixture, &format!("{attack}; rm owned"));
    }
}

#[test]
fn a_repository_behind_many_directories_is_found() {
    for fixture in SandboxFixture::for_each_user() {
        assert_outside(
            &fixture,
            "mkdir -p many/{1..520}; for i in 1 520; do git init -q many/$i/x/y/z/repo; done",
        );
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let plant = "for i in 1 520; do git -C many/$i/x/y/z/repo config core.fsmonitor \"$EVIL\"; git init -q many/$i/new; git -C many/$i/new config core.fsmonitor \"$EVIL\"; done";
        script(&fixture, Some(&confinement), plant);
        let outside =
            "for i in many/{1,520}/{x/y/z/repo,new}; do git -C $i status; done; test ! -e owned";
        assert_outside(&fixture, outside);
    }
}

// A path that the configuration names, and that does not exist yet.
#[test]
fn files_that_the_configuration_names_are_protected_even_before_they_exist() {
    for fixture in SandboxFixture::for_each_user() {
        assert_outside(
            &fixture,
            "rm -rf .git; git init -q; git config include.path ../.gitconfig.local; git config core.hooksPath hooks
            mkdir tools; echo true > tools/clean; git config filter.x.clean 'sh ./tools/clean'",
        );
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let plant = "printf '[core]\\n\\tfsmonitor = %s\\n' \"$EVIL\" > .gitconfig.local; mkdir hooks; echo \"$HOOK\" > hooks/pre-commit; chmod +x hooks/*; echo \"$EVIL\" > tools/clean || mv tools other";
        let output = script(&fixture, Some(&confinement), plant);
        assert!(!output.status.success(), "{output:?}");
        script(
            &fixture,
            None,
            "echo '* filter=x' > .gitattributes; git status; git add -A; git commit -m x",
        );
        assert!(!fixture.path("home/work/owned").exists());
    }
}

/// Puts a program that must not run at a path, however it can.
pub(crate) const PLANT: &str = "plant() { mkdir -p $(dirname $1); rm -f $1; echo \"$HOOK\" > $1; chmod +x $1; }
evil_repository() { git init -q $1; git -C $1 config core.fsmonitor \"$EVIL\"; }
plant_config() { mkdir -p $(dirname $1); rm -f $1; printf '[core]\\n\\tfsmonitor = touch %s/owned\\n' $W > $1; }
safe() { mkdir -p $(dirname $1); printf '#!/bin/sh\\ncat\\n' > $1; chmod +x $1; }
";

// Paths that the configuration names, relative to each working tree that uses it.
#[test]
fn what_the_configuration_names_is_protected_in_every_working_tree() {
    let commit = "commit -q --allow-empty -m x";
    let cases = [
        // The setup, what the command plants, and the arguments of git that would run it.
        (
            "git config core.hooksPath h",
            "plant tree/h/pre-commit",
            format!("-C tree {commit}"),
        ),
        (
            "git -C sub config core.hooksPath h",
            "plant sub/h/pre-commit",
            format!("-C sub {commit}"),
        ),
        (
            "git -C proj config core.hooksPath h",
            "plant proj/h/pre-commit",
            format!("-C proj {commit}"),
        ),
        (
            "git config --global core.hooksPath h",
            "plant a/b/c/d/e/f/g/h/pre-commit",
            format!("-C a/b/c/d/e/f/g {commit}"),
        ),
        (
            "git config --global core.hooksPath h",
            "plant target/y/h/pre-commit",
            format!("-C target/y {commit}"),
        ),
        (
            "git -C target/y config core.hooksPath h; safe target/y/h/pre-commit",
            "plant target/y/h/pre-commit",
            format!("-C target/y {commit}"),
        ),
        (
            "git -C proj config filter.x.clean ./c; echo '* filter=x' > proj/.gitattributes; safe proj/c",
            "plant proj/c; touch proj/f",
            "-C proj add f".into(),
        ),
        (
            "git --git-dir=data/store config core.worktree ../../other; mkdir other; git --git-dir=data/store config core.hooksPath h",
            "plant other/h/pre-commit",
            format!("--git-dir=data/store {commit}"),
        ),
        // Includes.
        (
            "git config include.path ../one; printf '[include]\\npath = two\\n' > one",
            "plant_config two",
            "status".into(),
        ),
        (
            "git config include.path ../one; printf '[core]\\nhooksPath = h\\n' > one",
            "plant h/pre-commit",
            commit.into(),
        ),
        (
            "git config includeIf.gitdir:/.path ../c/one; mkdir c; printf '[include]\\npath = two\\n' > c/one",
            "plant_config c/two",
            "status".into(),
        ),
        // Links.
        (
            "mkdir real; ln -s real h; git config core.hooksPath h",
            "rm h; plant h/pre-commit",
            commit.into(),
        ),
        (
            "mkdir -p real/h; ln -s real l; git config core.hooksPath l/h",
            "rm l; plant l/h/pre-commit",
            commit.into(),
        ),
        (
            "safe s/hook; ln -s ../../s/hook .git/hooks/pre-commit",
            "plant s/hook",
            commit.into(),
        ),
        (
            "safe s/hook; mkdir h; ln -s ../s/hook h/pre-commit; git config core.hooksPath h",
            "plant s/hook",
            commit.into(),
        ),
        (
            "mkdir -p .husky/_; printf '#!/bin/sh\\nsh .husky/pre-commit\\n' > .husky/_/pre-commit; chmod +x .husky/_/*; git config core.hooksPath .husky/_",
            "plant .husky/pre-commit",
            commit.into(),
        ),
        // The form of values.
        (
            "git config core.hooksPath 'a b'",
            "mkdir 'a b'; plant h; mv h 'a b/pre-commit'",
            commit.into(),
        ),
        (
            "printf '[core]\\n hooksPath = \\\\\\n  h # x\\n' >> .git/config",
            "plant h/pre-commit",
            commit.into(),
        ),
        (
            "printf '[core] hooksPath = h\\n# \\351\\n' >> .git/config",
            "plant h/pre-commit",
            commit.into(),
        ),
        // Programs that do not exist yet.
        ("git config alias.q '!s/x'", "plant s/x", "q".into()),
        (
            "git config alias.q '!sh -c \"./s/x;true\"'",
            "plant s/x",
            "q".into(),
        ),
        (
            "git config core.fsmonitor ./s/x",
            "plant s/x",
            "status".into(),
        ),
        (
            "git config submodule.sub.update '!./s/x'",
            "plant s/x; plant sub/s/x; git -C sub commit -q --allow-empty -m x; git add sub; git commit -qm x; git -C sub reset -q --hard HEAD^",
            "submodule update".into(),
        ),
        (
            "git config credential.helper '!./s/x'",
            "plant s/x",
            "credential fill < request".into(),
        ),
        (
            "git config --global init.templateDir $W/t",
            "plant t/hooks/post-checkout",
            "clone -q origin new".into(),
        ),
        // What the shell replaces, blanks, and names without a slash.
        (
            "git config alias.q '!\"$(git rev-parse --show-toplevel)\"/s/x'",
            "plant s/x",
            "q".into(),
        ),
        ("git config alias.q '!${PWD}/s/x'", "plant s/x", "q".into()),
        (
            "git config alias.q '!$HOME/work/s/x'",
            "plant s/x",
            "q".into(),
        ),
        (
            "git config alias.q '!./a\\ b/x'",
            "mkdir 'a b'; plant x; mv x 'a b/x'",
            "q".into(),
        ),
        ("git config alias.q '!sh x'", "plant x", "q".into()),
        (
            "git config alias.q '!env bash -e x.sh'",
            "plant x.sh",
            "q".into(),
        ),
        // A variable of the user names the configuration.
        (
            "printf '[core]\\nhooksPath = h\\n' > ~/other",
            "plant h/pre-commit",
            commit.into(),
        ),
    ];
    assert_protected(&cases);
}

// What the configuration of the repository, the user or the system names, in a working tree that did not exist.
#[test]
fn what_the_configuration_names_is_checked_in_new_working_trees() {
    let commit = "-C new commit -q --allow-empty -m x";
    let hooks = "git config core.hooksPath h";
    let global_hooks = "git config --global core.hooksPath h";
    let cases = [
        (
            hooks,
            "git worktree add -q new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            hooks,
            "mkdir new; echo gitdir: ../.git > new/.git; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            hooks,
            "cp -a tree new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            "git config core.hooksPath h; safe h/pre-commit; git add h; git commit -qm h",
            "git worktree add -q new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            "git config core.hooksPath h; mkdir h; safe h/pre-commit; chmod -x h/pre-commit; git add h; git commit -qm h",
            "git worktree add -q new; plant new/h/post-commit",
            commit.into(),
        ),
        (
            "git config core.hooksPath ../h",
            "git worktree add -q n/new; plant n/h/pre-commit",
            "-C n/new commit -q --allow-empty -m x".into(),
        ),
        (
            hooks,
            "git worktree add -q new; plant e/pre-commit; ln -s ../e new/h",
            commit.into(),
        ),
        (
            "mkdir -p .husky/_; printf '#!/bin/sh\\nsh .husky/pre-commit\\n' > .husky/_/pre-commit; chmod +x .husky/_/*; git config core.hooksPath .husky/_",
            "git worktree add -q new; mkdir new/.husky; cp -a .husky/_ new/.husky/_; plant new/.husky/pre-commit",
            commit.into(),
        ),
        (
            "git config filter.x.clean ./c; git config core.attributesFile ~/attributes; echo '* filter=x' > ~/attributes",
            "git worktree add -q new; plant new/c; touch new/f",
            "-C new add f".into(),
        ),
        (
            global_hooks,
            "git clone -q origin new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            global_hooks,
            "git init -q new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            global_hooks,
            "git init -q target/new; plant target/new/h/pre-commit; mv target/new new",
            commit.into(),
        ),
        (
            global_hooks,
            "mv target/y new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            global_hooks,
            "git init -q --separate-git-dir data/new new; plant new/h/pre-commit",
            commit.into(),
        ),
        (
            global_hooks,
            "git init -q new; plant new/.git/h/post-receive",
            "push -q new HEAD:refs/heads/x".into(),
        ),
        (
            global_hooks,
            "git init -q --bare new.git; plant new.git/h/post-receive",
            "push -q new.git HEAD:refs/heads/x".into(),
        ),
        (
            global_hooks,
            "git init -q new; git -C new -c protocol.file.allow=always submodule --quiet add $W/origin m; plant new/m/h/pre-commit",
            "-C new/m commit -q --allow-empty -m x".into(),
        ),
        (
            "git config --global alias.q '!./s/x'",
            "git clone -q origin new; plant new/s/x",
            "-C new q".into(),
        ),
    ];
    assert_protected(&cases);
}

/// Checks that git runs what a command planted without the sandbox, and not with it. Each case has the setup, what the
/// command plants, and the arguments of git.
fn assert_protected(cases: &[(&str, &str, String)]) {
    let mut wrong = Vec::new();
    let mut fixtures = SandboxFixture::for_each_user();
    for fixture in &mut fixtures {
        let other = fixture.path("home/other").display().to_string();
        fixture.variables.push(("GIT_CONFIG_SYSTEM", other));
    }
    for (number, fixture) in fixtures.iter().enumerate() {
        let work = fixture.path("home/work");
        assert_outside(fixture, PREPARE);
        assert_outside(
            fixture,
            "printf 'protocol=https\\nhost=x\\n\\n' > request; cp -a $W $W/../template",
        );
        for (setup, plant, arguments) in cases.iter().skip(number).step_by(fixtures.len()) {
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            // Without the sandbox, the program runs.
            for confinement in [None, Some(&confinement)] {
                assert_outside(fixture, &format!("{PLANT}{setup}"));
                script(fixture, confinement, &format!("{PLANT}{plant}"));
                let git = format!("export GIT_TERMINAL_PROMPT=0; git {arguments}");
                let output = script(fixture, None, &git);
                if work.join("owned").exists() != confinement.is_none() {
                    wrong.push((*setup, confinement.is_some(), output));
                }
                assert_outside(
                    fixture,
                    "rm -f ~/.gitconfig ~/other ~/attributes; find $W -mindepth 1 -delete; cp -a $W/../template/. $W",
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// A command can write to the list of working trees. Only real ones have files that may be copied.
#[test]
fn a_copy_of_a_file_in_another_repository_does_not_pass() {
    for fixture in SandboxFixture::for_each_user() {
        let setup = "rm -rf .git; git init -q; git commit -q --allow-empty -m x; git config core.hooksPath h";
        assert_outside(&fixture, setup);
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        for plant in [
            "plant x/h/pre-commit; git init -q x",
            "git worktree add -q new; mkdir .git/worktrees/x; echo $W/x/.git > .git/worktrees/x/gitdir; cp -a x/h new/h",
        ] {
            script(&fixture, Some(&confinement), &format!("{PLANT}{plant}"));
        }
        assert_outside(&fixture, "test -e x/h/pre-commit; test -e new/h/pre-commit");
        script(&fixture, None, "git -C new commit -q --allow-empty -m x");
        assert!(!fixture.path("home/work/owned").exists());
    }
}

// A file that another command moves back is as new as before.
#[test]
fn a_repository_that_bub_disabled_cannot_be_enabled_by_a_command() {
    for fixture in SandboxFixture::for_each_user() {
        let work = fixture.path("home/work");
        assert_outside(
            &fixture,
            "rm -rf .git; git config --global core.hooksPath h",
        );
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let plant = format!("{PLANT}git init -q new; plant new/h/pre-commit");
        let output = script(&fixture, Some(&confinement), &plant);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("renamed `new/.git/HEAD` to"), "{text}");
        let enable = "mv new/.git/HEAD.sandbox-* new/.git/HEAD";
        for _ in 0..2 {
            let output = script(&fixture, Some(&confinement), enable);
            assert!(output.status.success(), "{output:?}");
            script(&fixture, None, "git -C new commit -q --allow-empty -m x");
            assert!(!work.join("owned").exists());
        }
        // The user has checked it.
        script(&fixture, None, enable);
        script(&fixture, None, "git -C new commit -q --allow-empty -m x");
        assert!(work.join("owned").exists());
    }
}

#[test]
fn what_an_outer_repository_names_in_the_workspace_is_protected() {
    for fixture in SandboxFixture::for_each_user() {
        for (setup, workspace) in [
            (
                "mkdir sub; git config core.hooksPath sub/h",
                "home/work/sub",
            ),
            (
                "git worktree add -q ../tree; git config core.hooksPath h",
                "home/tree",
            ),
            (
                "mkdir sub; safe sub/h/x; ln -sf ../../sub/h/x .git/hooks/pre-commit",
                "home/work/sub",
            ),
        ] {
            assert_outside(
                &fixture,
                &format!(
                    "rm -rf $W/.git $W/sub ../tree; git init -q; git commit -q --allow-empty -m x\n{PLANT}{setup}"
                ),
            );
            let mut confinement = fixture.confinement(SandboxProfile::Workspace);
            confinement.workspace = fixture.path(workspace);
            let plant = format!("{SETUP}{PLANT}plant h/pre-commit; plant h/x");
            fixture.run_in(&confinement.workspace, &confinement, &plant);
            let commit = format!(
                "git -C {} commit -q --allow-empty -m x",
                confinement.workspace.display()
            );
            script(&fixture, None, &commit);
            let owned = confinement.workspace.join("owned");
            assert!(!owned.exists(), "{setup}");
        }
    }
}

#[test]
fn repositories_that_run_no_programs_stay_usable() {
    let cases = [
        (
            "git commit -q --allow-empty -m x && git branch other && git tag t",
            "git log -1",
        ),
        (
            "git clone -q origin copy && git -C copy commit -q --allow-empty -m x",
            "git -C copy log -1",
        ),
        (
            "git clone -q --bare origin copy.git && git push -q copy.git HEAD:refs/heads/x",
            "git -C copy.git log -1",
        ),
        (
            "git clone -q --filter=blob:none --sparse file://$W/origin copy",
            "git -C copy log -1 && git -C copy config remote.origin.promisor",
        ),
        (
            "git init -q new && git -C new config pull.rebase true && git -C new config submodule.x.update none && git -C new config rerere.enabled true",
            "git -C new config rerere.enabled",
        ),
        (
            "git clone -q --mirror origin mirror.git",
            "git -C mirror.git log -1",
        ),
        (
            "git push -q bare.git HEAD:refs/heads/x",
            "git -C bare.git log -1 x",
        ),
        (
            "git worktree add -q new && git -C new commit -q --allow-empty -m x",
            "git -C new status && git worktree list | grep new",
        ),
        (
            "git -C tree commit -q --allow-empty -m x",
            "git -C tree log -1",
        ),
        (
            "git -C sub commit -q --allow-empty -m x && git add sub && git commit -qm sub",
            "git -C sub status && git status",
        ),
        (
            "git -C proj commit -q --allow-empty -m x",
            "git -C proj log -1",
        ),
        (
            "git init -q --separate-git-dir data/new new && git -C new commit -q --allow-empty -m x",
            "git -C new log -1",
        ),
        (
            "git init -q new && cd new && git -c protocol.file.allow=always submodule --quiet add ../origin m && git commit -qm x",
            "git -C new/m status && git -C new status && git -C new submodule status",
        ),
        (
            "git init -q target/new && git -C target/new commit -q --allow-empty -m x && rm -rf target",
            "test ! -e target",
        ),
        (
            "git -C target/y commit -q --allow-empty -m x",
            "git -C target/y log -1",
        ),
        (
            "git clone -q --recurse-submodules . /tmp/all && git -C /tmp/all/sub log -1",
            "true",
        ),
        (
            "git rebase -q --root && git stash list && git gc -q",
            "git fsck",
        ),
    ];
    for_each_workspace(&cases, |_, inside, confined, after| {
        assert!(confined.status.success(), "{inside}: {confined:?}");
        let text = String::from_utf8_lossy(&confined.stderr);
        assert!(!text.contains("bub:"), "{inside}: {text}");
        assert!(after.status.success(), "{inside}: {after:?}");
    });
}

// What cannot work inside fails with a text that leads to the offer to run it outside.
#[test]
fn a_change_of_the_configuration_fails_with_a_clear_reason() {
    let cases = [
        ("git config user.name b", ""),
        ("git submodule update", ""),
        ("rm -r sub", ""),
        ("git worktree remove tree", ""),
    ];
    for_each_workspace(&cases, |_, inside, confined, _| {
        assert!(!confined.status.success(), "{inside}: {confined:?}");
        let text = String::from_utf8_lossy(&confined.stderr);
        let reasons = ["Device or resource busy", "Read-only file system"];
        let has_reason = reasons.iter().any(|reason| text.contains(reason));
        assert!(has_reason, "{inside}: {text}");
    });
}

#[test]
fn what_makes_a_directory_a_repository_gets_another_name() {
    for fixture in SandboxFixture::for_each_user() {
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let plant = "mkdir config; evil_directory docs; mv docs/objects docs/refs docs/HEAD .";
        let output = script(&fixture, Some(&confinement), plant);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("renamed `HEAD` to `HEAD.sandbox-"), "{text}");
        assert!(fixture.path("home/work/config").is_dir());
        let names = fs::read_dir(fixture.path("home/work/docs"))
            .unwrap()
            .count();
        assert_eq!(names, 1, "the configuration is kept");
    }
}
