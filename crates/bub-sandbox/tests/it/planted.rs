//! Ways to make git outside the sandbox run a planted program that need more than one command, or a link, or a
//! configuration that is hard to read. What cannot be protected is refused.

use bub_sandbox::{Confinement, SandboxProfile, enable_repository};

use crate::{
    harness::SandboxFixture,
    repositories::{PLANT, PREPARE, SETUP, assert_outside, script},
};

/// The private temporary directory: inside, it is `/tmp`.
const TEMP: &str = "T=/tmp; [ ! -d $W/../../temp ] || T=$(realpath $W/../../temp)\n";

/// A way to plant a program.
struct Attack {
    /// What the user did before.
    setup: &'static str,
    /// What the commands do, one after the other.
    commands: &'static [&'static str],
    /// The arguments of git with which the user runs the program.
    git: &'static str,
}

const ATTACKS: &[Attack] = &[
    // Another name of a file of git that a later command must not change.
    Attack {
        setup: "",
        commands: &[
            "git init -q new; ln new/.git/config kept",
            "printf '[core]\\n\\tfsmonitor = touch %s/owned\\n' $W >> kept",
        ],
        git: "-C new status",
    },
    Attack {
        setup: "",
        commands: &[
            "git worktree add -q new; ln new/.git kept",
            "evil_directory evil $W/new; echo gitdir: $W/evil > kept",
        ],
        git: "-C new status",
    },
    Attack {
        setup: "safe run; git config alias.q '!./run'; ln run kept",
        commands: &["echo \"$HOOK\" > kept"],
        git: "q",
    },
    // A relative path in a file of the user that commands do not see.
    Attack {
        setup: "printf '[core]\\nhooksPath = h\\n' > ~/included; git config --global include.path $HOME/included",
        commands: &["git init -q new; plant new/h/pre-commit"],
        git: "-C new commit -q --allow-empty -m x",
    },
    Attack {
        setup: "printf '[core]\\nhooksPath = h\\n' > ~/global",
        commands: &["git init -q new; plant new/h/pre-commit"],
        git: "-C new commit -q --allow-empty -m x",
    },
    Attack {
        setup: "printf '[core]\\nhooksPath = h\\n' > ~/included; git config include.path $HOME/included",
        commands: &["git worktree add -q new; plant new/h/pre-commit"],
        git: "-C new commit -q --allow-empty -m x",
    },
    // A link on the way to a path that the configuration names.
    Attack {
        setup: "git config core.hooksPath parent/h",
        commands: &["plant $T/e/h/pre-commit; ln -s $W/../../temp/e parent"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config core.hooksPath parent/h; mkdir parent",
        commands: &[
            "rmdir parent; ln -s $W/../../temp/e parent",
            "plant $T/e/h/pre-commit",
        ],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "mkdir $W/../../temp/e; chmod 777 $W/../../temp/e; ln -s $W/../../temp/e parent; git config core.hooksPath parent/h",
        commands: &["plant $T/e/h/pre-commit"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config include.path ../parent/config",
        commands: &["plant_config $T/e/config; ln -s $W/../../temp/e parent"],
        git: "status",
    },
    Attack {
        setup: "safe s/real; ln -s real s/link; ln -s ../../s/link .git/hooks/pre-commit",
        commands: &["plant other; ln -sfn ../other s/link"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "safe s/real; ln -s s l; ln -s ../../l/real .git/hooks/pre-commit",
        commands: &["plant other/real; ln -sfn other l"],
        git: "commit -q --allow-empty -m x",
    },
    // A directory at the path of a file.
    Attack {
        setup: "git config alias.q '!./run'; mkdir run",
        commands: &["rmdir run; plant run"],
        git: "q",
    },
    Attack {
        setup: "git config include.path ../included; mkdir included",
        commands: &["rmdir included; plant_config included"],
        git: "status",
    },
    // A remote that no search reaches.
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new remote set-url origin $W/../../temp/evil.git",
        ],
        git: "-C new push -q origin HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new config remote.origin.pushurl file://$W/../../te%6dp/evil.git",
        ],
        git: "-C new push -q origin HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare .git/objects/evil; plant .git/objects/evil/hooks/post-receive; git clone -q origin new; git -C new config branch.main.pushRemote ../.git/objects/evil",
        ],
        git: "-C new push -q ../.git/objects/evil HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new config branch.main.remote x; ln -s $W/../../temp/evil.git new/x",
        ],
        git: "-C new -c push.default=current push -q",
    },
    Attack {
        setup: "git remote add backup ./backup.git",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; ln -s $W/../../temp/evil.git backup.git",
        ],
        git: "push -q backup HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; mkdir -p .git/remotes; echo URL: $W/../../temp/evil.git > .git/remotes/backup",
        ],
        git: "push -q backup HEAD:refs/heads/x",
    },
    Attack {
        setup: "mkdir -p .git/branches",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; echo $W/../../temp/evil.git > .git/branches/backup",
        ],
        git: "push -q backup HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; mkdir -p new/.git/branches; echo $W/../../temp/evil.git > new/.git/branches/backup",
        ],
        git: "-C new push -q backup HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new remote set-url origin file://localhost$(cd $W/../..; pwd)/temp/evil.git",
        ],
        git: "-C new push -q origin HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new remote set-url origin /proc/self/cwd/../../../temp/evil.git",
        ],
        git: "-C new push -q origin HEAD:refs/heads/x",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare $T/evil.git; plant $T/evil.git/hooks/post-receive; git clone -q origin new; git -C new worktree add -q ../x/y/tree; git -C new remote set-url origin ../../../../../temp/evil.git",
        ],
        git: "-C x/y/tree push -q origin HEAD:refs/heads/x",
    },
    // Forms of a path.
    Attack {
        setup: "git config core.hooksPath build/../hooks; mkdir build hooks",
        commands: &[
            "plant $T/hooks/pre-commit; mkdir $T/d; rmdir build; ln -s $W/../../temp/d build",
        ],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config core.hooksPath \"~daemon/../..$W/h\"",
        commands: &["plant h/pre-commit"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config core.hooksPath \"%(prefix)/../../../../../..$W/h\"",
        commands: &["plant h/pre-commit"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config core.hooksPath $'h\\351'",
        commands: &["plant h/pre-commit; mv h $'h\\351'"],
        git: "commit -q --allow-empty -m x",
    },
    Attack {
        setup: "git config alias.q '!\"$(git rev-parse --show-toplevel)\"/run'",
        commands: &["plant run"],
        git: "q",
    },
    // A disabled repository that a working tree or `git init` makes git use again.
    Attack {
        setup: "",
        commands: &[
            "git init -q new; git -C new commit -q --allow-empty -m x; git -C new worktree add -q ../other; git -C new config core.fsmonitor \"$EVIL; false\"",
        ],
        git: "-C other status",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q --bare new; git clone -q origin copy; git -C copy push -q ../new HEAD:main; git -C new worktree add -q ../other main; plant new/hooks/pre-commit",
        ],
        git: "-C other commit -q --allow-empty -m x",
    },
    Attack {
        setup: "",
        commands: &["plant new/.git/hooks/pre-commit"],
        git: "init -q new; git -C new commit -q --allow-empty -m x",
    },
    Attack {
        setup: "",
        commands: &["plant_config new/.git/config"],
        git: "init -q new; git -C new status",
    },
    Attack {
        setup: "",
        commands: &["git init -q new; plant_config kept; cat kept >> new/.git/config"],
        git: "init -q new; git -C new status",
    },
    Attack {
        setup: "",
        commands: &["git init -q --bare new; plant new/hooks/post-receive"],
        git: "init -q --bare new; git push -q new HEAD:refs/heads/x",
    },
    // A link in a git directory, by which git writes elsewhere.
    Attack {
        setup: "",
        commands: &["ln -sf ../run .git/COMMIT_EDITMSG; echo \"$EVIL\" > .git/MERGE_MSG"],
        git: "commit -q --allow-empty --no-edit; sh run",
    },
    Attack {
        setup: "ln -s ../../../other .git/worktrees/tree/COMMIT_EDITMSG",
        commands: &[
            "ln -sf $W/run .git/worktrees/tree/COMMIT_EDITMSG; echo \"$EVIL\" > .git/worktrees/tree/MERGE_MSG",
        ],
        git: "-C tree commit -q --allow-empty --no-edit; sh run",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q new; ln -s $W/run new/.git/COMMIT_EDITMSG; echo \"$EVIL\" > new/.git/MERGE_MSG",
        ],
        git: "-C new commit -q --allow-empty --no-edit; sh run",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["rm -r .git/logs/refs; ln -s $W/hidden .git/logs/refs"],
        git: "branch x; ! ls hidden/heads/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["mkdir -p .git/refs/heads/a; ln -s $W/hidden .git/refs/heads/a/b"],
        git: "branch a/b/x; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["rm -rf .git/objects/info; ln -s $W/hidden .git/objects/info"],
        git: "-c gc.writeCommitGraph=true gc -q; ! ls hidden/* || touch owned",
    },
    Attack {
        setup: "mkdir -p hidden/x; touch hidden/x/y",
        commands: &["ln -s $W/hidden .git/worktrees/new"],
        git: "worktree prune; ls hidden/x/y || touch owned",
    },
    // A link to a repository that is hidden in a git directory or in the private temporary directory.
    Attack {
        setup: "",
        commands: &["evil_repository .git/objects/evil; ln -s .git/objects/evil x"],
        git: "-C x status",
    },
    Attack {
        setup: "",
        commands: &["evil_repository .git/refs/a/evil; ln -s $W/.git/refs/a x"],
        git: "-C x/evil status",
    },
    Attack {
        setup: "",
        commands: &["evil_directory .git/logs/evil; ln -s .git/logs/evil x"],
        git: "-C x status",
    },
    Attack {
        setup: "",
        commands: &["evil_repository $T/evil; ln -s $W/../../temp/evil x"],
        git: "-C x status",
    },
    Attack {
        setup: "",
        commands: &["evil_repository $T/evil; ln -s $(cd $W/../..; pwd)/temp x"],
        git: "-C x/evil status",
    },
    Attack {
        setup: "mkdir d",
        commands: &[
            "ln -s ../../../temp/evil d/y; ln -s d/y x",
            "evil_repository $T/evil",
        ],
        git: "-C x status",
    },
    Attack {
        setup: "",
        commands: &["evil_repository $T/evil; ln -s /proc/self/cwd/../../temp/evil x"],
        git: "-C x status",
    },
    // The first link leads nowhere until another one changes what is on the way.
    Attack {
        setup: "mkdir d",
        commands: &[
            "evil_repository $T/evil; ln -s d/../../../../temp/evil x",
            "rmdir d; mkdir -p e/f; ln -s e/f d",
        ],
        git: "-C x status",
    },
    // A link of the user on the way, also one that commands do not see.
    Attack {
        setup: "ln -s / top",
        commands: &["evil_repository $T/evil; ln -s top$(cd $W/../..; pwd)/temp/evil x"],
        git: "-C x status",
    },
    Attack {
        setup: "ln -s ../temp ~/alias",
        commands: &["evil_repository $T/evil; ln -s ~/alias/evil x"],
        git: "-C x status",
    },
    Attack {
        setup: "ln -s ../temp ~/alias",
        commands: &[
            "evil_repository $T/evil; git clone -q origin new; git -C new remote set-url origin ~/alias/evil; plant $T/evil/.git/hooks/post-receive",
        ],
        git: "-C new push -q origin HEAD:refs/heads/x",
    },
    // Links anywhere in a git directory.
    Attack {
        setup: "mkdir hidden",
        commands: &[
            "echo \"$EVIL\" | git hash-object -w --stdin; mkdir -p .git/lost-found; ln -s $W/hidden .git/lost-found/other",
        ],
        git: "fsck --lost-found; ! ls hidden/* || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["ln -s $W/hidden/x .git/objects/pack/multi-pack-index"],
        git: "repack -q -d; git multi-pack-index write; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &[
            "mkdir -p .git/objects/info/commit-graphs; ln -s $W/hidden/x .git/objects/info/commit-graphs/commit-graph-chain",
        ],
        git: "commit-graph write --reachable --split; ! ls hidden/x || touch owned",
    },
    // The configuration of the user is in the workspace.
    Attack {
        setup: "touch gitconfig; ln -s work/gitconfig ~/.gitconfig",
        commands: &["plant_config gitconfig"],
        git: "status",
    },
    // A symbolic reference, by which git writes elsewhere.
    Attack {
        setup: "mkdir hidden",
        commands: &["echo ref: refs/../../hidden/x > .git/HEAD"],
        git: "commit -q --allow-empty -m x; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["echo ref: refs/../../hidden/x > .git/refs/heads/main"],
        git: "commit -q --allow-empty -m x; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["echo ref: refs/../../hidden/x > .git/ORIG_HEAD"],
        git: "reset -q HEAD~1; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["echo ref: refs/../../hidden/x > .git/refs/stash"],
        git: "status; echo x > file; git stash; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["mkdir -p .git/refs/tags; echo ref: refs/../../hidden/x > .git/refs/tags/v1"],
        git: "tag -f v1; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["echo ref: refs/../../hidden/x > .git/worktrees/tree/HEAD"],
        git: "-C tree commit -q --allow-empty -m x; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &["git clone -q origin new; echo ref: refs/../../../hidden/x > new/.git/HEAD"],
        git: "-C new commit -q --allow-empty -m x; ! ls hidden/x || touch owned",
    },
    Attack {
        setup: "mkdir hidden",
        commands: &[
            "mkdir -p old/d; echo ref: refs/../../hidden/x > old/d/t",
            "mv old .git/refs/heads/old",
        ],
        git: "update-ref refs/heads/old/d/t HEAD; ! ls hidden/x || touch owned",
    },
    // The place of a working tree, to which git writes.
    Attack {
        setup: "mkdir ../outer",
        commands: &["echo $(cd $W/..; pwd)/outer/.git > .git/worktrees/tree/gitdir"],
        git: "worktree repair; ! ls ../outer/.git || touch owned",
    },
    Attack {
        setup: "mkdir ../outer",
        commands: &[
            "mkdir .git/worktrees/new; echo $(cd $W/..; pwd)/outer/.git > .git/worktrees/new/gitdir",
        ],
        git: "worktree repair; ! ls ../outer/.git || touch owned",
    },
    // Recorded resolutions, by which git copies a file of the user.
    Attack {
        setup: "",
        commands: &[
            "H=$(printf %040d 1); mkdir -p .git/rr-cache/$H; echo x > .git/rr-cache/$H/preimage; printf '%s\\t../secret\\0' $H > .git/MERGE_RR",
        ],
        git: "commit -q --allow-empty -m x; ! grep -rq canary .git/rr-cache || touch owned",
    },
    Attack {
        setup: "",
        commands: &[
            "H=$(printf %040d 1); mkdir -p .git/rr-cache/$H; echo x > .git/rr-cache/$H/preimage; printf '%s\\tl\\0' $H > .git/MERGE_RR; mkdir l",
            "rmdir l; ln -s ../secret l",
        ],
        git: "commit -q --allow-empty -m x; ! grep -rq canary .git/rr-cache || touch owned",
    },
    // Commands and options in the state of an interrupted work.
    Attack {
        setup: "",
        commands: &[
            "export EVIL; GIT_SEQUENCE_EDITOR='printf \"break\\nexec %s\\n\" \"$EVIL\" >' git rebase -q -i HEAD~1",
        ],
        git: "rebase --continue",
    },
    Attack {
        setup: "",
        commands: &[
            "GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git rebase -q -i HEAD~1",
            "printf '\\tx\\t%s\\n' \"$EVIL\" > .git/rebase-merge/git-rebase-todo",
        ],
        git: "rebase --continue",
    },
    Attack {
        setup: "for n in n1 n2; do echo $n > $n; git add $n; git commit -qm $n; done",
        commands: &[
            "GIT_SEQUENCE_EDITOR='sed -i 1s/.*/break/' git rebase -q -i HEAD~2; mkdir git-merge-x; plant evil; echo x/../evil > .git/rebase-merge/strategy",
        ],
        git: "rebase --continue",
    },
    Attack {
        setup: "for n in n1 n2; do echo $n > $n; git add $n; git commit -qm $n; done; git checkout -q HEAD~2; echo c > n1",
        commands: &[
            "git add n1; git commit -qm c; git cherry-pick main~1 main; git checkout -q HEAD n1; mkdir git-merge-x; plant evil; printf '[options]\\n\\tstrategy = x/../evil\\n' > .git/sequencer/opts",
        ],
        git: "cherry-pick --skip",
    },
    Attack {
        setup: "mkdir hidden; for n in 1 2 3; do echo $n > n; git add n; git commit -qm $n; [ $n != 2 ] || git format-patch -q -1; done",
        commands: &[
            "git am -3 *.patch; echo \"'--build-fake-ancestor=$W/hidden/x'\" > .git/rebase-apply/apply-opt; git checkout -q HEAD~1 .; git reset -q --soft HEAD~1",
        ],
        git: "am --retry || git am --resolved; ! ls hidden/x || touch owned",
    },
    // Names in the index, which git does not check.
    Attack {
        setup: "",
        commands: &[
            "plant zgit/hooks/pre-commit; git add zgit; sed -i s#zgit/hooks#.git/hooks# .git/index",
        ],
        git: "checkout -- .; git commit -q --allow-empty -m x",
    },
    Attack {
        setup: "",
        commands: &[
            "mkdir zz; touch zz/outer; git add zz; git update-index --index-version 4; sed -i s#zz/outer#../outer# .git/index",
        ],
        git: "restore .; ! ls ../outer || touch owned",
    },
    Attack {
        setup: "",
        commands: &[
            "git init -q new; cd new; mkdir zz; touch zz/outer; git add zz; git update-index --split-index; sed -i s#zz/outer#../outer# .git/sharedindex.*",
        ],
        git: "-C new restore .; ! ls outer || touch owned",
    },
    // Objects of another repository, which git copies.
    Attack {
        setup: "git init -q ../outer; cat ../secret | git -C ../outer hash-object -w --stdin",
        commands: &[
            "(cd $W/..; pwd) | sed s#\\$#/outer/.git/objects# > .git/objects/info/alternates",
        ],
        git: "fsck --lost-found; ! grep -rq canary .git/lost-found || touch owned",
    },
    Attack {
        setup: "git init -q ../outer; cat ../secret | git -C ../outer hash-object -w --stdin",
        commands: &[
            "mkdir -p more/info; echo ../../../more > .git/objects/info/alternates; ln -s more .git/x",
            "(cd $W/..; pwd) | sed s#\\$#/outer/.git/objects# > more/info/alternates; echo ../../more > .git/objects/info/alternates",
        ],
        git: "fsck --lost-found; ! grep -rq canary .git/lost-found || touch owned",
    },
    // A working tree of a repository outside.
    Attack {
        setup: "git init -q ../outer; git -C ../outer commit -q --allow-empty -m x; git -C ../outer config core.hooksPath h; git -C ../outer worktree add -q $W/inner",
        commands: &["plant inner/h/pre-commit"],
        git: "-C inner commit -q --allow-empty -m x",
    },
];

const RESET: &str = "rm -rf ~/.gitconfig ~/included ~/global ~/alias ../outer $W/../../temp/*; find $W -mindepth 1 -delete; cp -a $W/../template/. $W";

// Each attack succeeds without the sandbox.
#[test]
fn nothing_is_planted_for_git_by_links_later_commands_or_unusual_configuration() {
    let mut wrong = Vec::new();
    for mut fixture in SandboxFixture::for_each_user() {
        let work = fixture.path("home/work");
        let global = fixture.path("home/global").display().to_string();
        assert_outside(&fixture, PREPARE);
        assert_outside(&fixture, "cp -a $W $W/../template");
        for attack in ATTACKS {
            let has_global = attack.setup.contains("~/global");
            let variable = has_global.then(|| ("GIT_CONFIG_GLOBAL", global.clone()));
            fixture.variables = variable.into_iter().collect();
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            for confinement in [None, Some(&confinement)] {
                assert_outside(&fixture, &format!("{PLANT}{}", attack.setup));
                for command in attack.commands {
                    script(&fixture, confinement, &format!("{PLANT}{TEMP}{command}"));
                }
                let output = script(&fixture, None, &format!("git {}", attack.git));
                if work.join("owned").exists() != confinement.is_none() {
                    wrong.push((attack.commands, attack.setup, confinement.is_some(), output));
                }
                assert_outside(&fixture, RESET);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs commands after a setup, in a workspace with a repository, and returns the output of the last.
fn run_after(fixture: &SandboxFixture, setup: &str, commands: &[&str]) -> (bool, String) {
    let prepare = "rm -rf .git; git init -q; git commit -q --allow-empty -m x";
    assert_outside(fixture, &format!("{PLANT}{prepare}; {setup}"));
    let confinement = fixture.confinement(SandboxProfile::Workspace);
    let mut result = (false, String::new());
    for command in commands {
        let output = script(fixture, Some(&confinement), command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        result = (output.status.success(), text);
    }
    result
}

#[test]
fn a_command_does_not_run_if_what_git_uses_cannot_be_protected() {
    for fixture in SandboxFixture::for_each_user() {
        for (setup, parts) in [
            (
                "git config core.hooksPath build/../hooks",
                ["core.hookspath = build/../hooks", "is reached through `..`"],
            ),
            (
                "mkdir real; ln -s real h; git config core.hooksPath h",
                ["core.hookspath = h", "is reached through a symbolic link"],
            ),
            (
                "safe run; ln run other; git config alias.q '!./run'",
                ["alias.q = !./run", "has other hard links"],
            ),
            (
                "git config include.path '~daemon/x'",
                ["include.path = ~daemon/x", "only git resolves"],
            ),
            (
                "git init -q a/b; git -C a/b config core.hooksPath $W/../../temp/h",
                [
                    "a/b/.git/config",
                    "another directory that commands can change",
                ],
            ),
            (
                "ln .git/config other",
                [".git/config", "has other hard links; replace it"],
            ),
        ] {
            let (is_success, text) = run_after(&fixture, setup, &["true"]);
            assert!(!is_success, "{setup}: {text}");
            assert!(text.contains("cannot protect what git runs"), "{text}");
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            assert_outside(&fixture, "find $W -mindepth 1 -delete");
        }
    }
}

// What ordinary users have in their configuration, and what tools write there.
#[test]
fn common_configurations_change_nothing() {
    let setup = r#"safe ~/hooks/pre-commit; git config --global core.hooksPath ~/hooks
        git config --global filter.lfs.clean 'git-lfs clean -- %f'; git config --global filter.lfs.process 'git-lfs filter-process'
        git config --global alias.lg 'log --graph --format=%h/%s'; git config --global alias.up '!f() { git fetch origin/x "$@" | sed s/a/b/; }; f'
        git config --global alias.x '!"$HOME/bin/x"'; git config --global credential.helper '!gh auth git-credential'
        git config --global core.pager 'delta | less -R'; git config --global core.editor 'code --wait'; git config --global gpg.program /usr/bin/gpg
        git config --global core.excludesFile '~/.gitignore'; git config --global url.git@host:.insteadOf https://host/
        git config --global mergetool.x.cmd 'nvim -d "$LOCAL" "$REMOTE"'; git config --global commit.template .template
        git remote add origin git@host:a/b.git; git config branch.main.merge refs/heads/main; git config alias.st status
        mkdir scripts; safe scripts/hook; ln -s ../../scripts/hook .git/hooks/pre-push; ln -s exclude .git/info/link"#;
    for fixture in SandboxFixture::for_each_user() {
        let commands = [
            "git commit -q --allow-empty -m y; git clone -q . copy; git worktree add -q tree",
            "git -C copy commit -q --allow-empty -m z && git -C tree commit -q --allow-empty -m z && mv copy other && rm -rf tree && git worktree prune",
        ];
        let (is_success, text) = run_after(&fixture, setup, &commands);
        assert!(is_success, "{text}");
        assert!(!text.contains("bub:"), "{text}");
        assert_outside(
            &fixture,
            "git -C other log -1 && git log -1 && test -L .git/info/link",
        );
        assert_outside(&fixture, "rm -rf ~/.gitconfig ~/hooks");
    }
}

#[test]
fn a_repository_of_a_command_can_be_changed_moved_and_removed_by_later_ones() {
    for fixture in SandboxFixture::for_each_user() {
        let commands = [
            "git init -q a && git -C a commit -q --allow-empty -m x && git clone -q a b && git init -q c && git -C c config alias.x '!y'",
            "git -C a config pull.rebase true && mv a d && rm -rf b",
            "rm -rf d c",
        ];
        let (is_success, text) = run_after(&fixture, "true", &commands);
        assert!(is_success, "{text}");
        assert_eq!(text, "");
        assert_outside(&fixture, "test ! -e a -a ! -e b -a ! -e c -a ! -e d");
    }
}

// A pipe would wait for a writer, and a large file would need as much memory.
#[test]
fn a_configuration_that_cannot_be_read_disables_a_repository() {
    for fixture in SandboxFixture::for_each_user() {
        for replace in [
            "mkfifo $C",
            "mkdir $C",
            "ln -s /dev/zero $C",
            "truncate -s 10G $C",
            "printf '[core]\\n\\tbare = \\360\\237\\230\\n' > $C",
        ] {
            let command = format!("git init -q new; C=new/.git/config; rm $C; {replace}");
            let (is_success, text) = run_after(&fixture, "rm -rf new", &[&command]);
            assert!(is_success, "{replace}: {text}");
            assert!(
                text.contains("renamed `new/.git/HEAD`"),
                "{replace}: {text}"
            );
        }
    }
}

// What the user changes in a repository that a command created is the user's, and protected.
#[test]
fn a_repository_belongs_to_the_user_who_changed_it() {
    for fixture in SandboxFixture::for_each_user() {
        run_after(&fixture, "true", &["git init -q new"]);
        assert_outside(&fixture, "git -C new config alias.x '!y'");
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let output = script(
            &fixture,
            Some(&confinement),
            "git -C new config alias.z '!y'",
        );
        assert!(!output.status.success(), "{output:?}");
        assert_outside(
            &fixture,
            "git -C new status && test \"$(git -C new config alias.x)\" = '!y'",
        );
    }
}

// Git writes to what a symbolic reference names. Those that name a reference stay.
#[test]
fn a_symbolic_reference_that_leads_elsewhere_is_renamed() {
    const TARGETS: &[(&str, bool)] = &[
        ("ref: refs/heads/other", true),
        ("ref:\\trefs/heads/.invalid  ", true),
        ("1111111111111111111111111111111111111111", true),
        ("ref: refs/heads/../../x", false),
        ("ref:refs/./x", false),
        ("ref: refs//x", false),
        ("ref: refs/", false),
        ("ref: /etc/x", false),
        ("ref: ../x", false),
        ("ref: config", false),
        ("ref: refs/heads/a\\001", false),
    ];
    for fixture in SandboxFixture::for_each_user() {
        let create = TARGETS.iter().enumerate();
        let create = create.map(|(number, (target, _))| {
            format!("printf '{target}\\n' > .git/refs/heads/r{number}; ")
        });
        let create: String = create.collect();
        // A pipe is removed.
        let commands = [&format!("{create} mkfifo .git/pipe") as &str];
        let (is_success, text) = run_after(&fixture, "true", &commands);
        assert!(is_success, "{text}");
        for (number, (target, is_safe)) in TARGETS.iter().enumerate() {
            let name = format!(".git/refs/heads/r{number}");
            let is_there = fixture.path("home/work").join(&name).exists();
            assert_eq!(is_there, *is_safe, "{target}: {text}");
            let note = format!("renamed `{name}` to `.r{number}.sandbox-");
            assert_eq!(text.contains(&note), !is_safe, "{target}: {text}");
        }
        assert!(
            text.contains("it names `refs/heads/../../x`, and git would write there"),
            "{text}"
        );
        assert!(
            text.contains("removed `.git/pipe`, a pipe or device: git would wait for it"),
            "{text}"
        );
        // It is renamed once.
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let output = script(&fixture, Some(&confinement), "git branch -q next");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

/// Creates a file in the git directory that no git reads safely.
const UNSAFE_STATE: &[(&str, &str)] = &[
    ("svn/.metadata", "x"),
    ("git-daemon-export-ok", ""),
    ("info/grafts", "x"),
    ("objects/info/http-alternates", "/x"),
    ("BISECT_START", "--orphan=x"),
    ("BISECT_NAMES", " $(touch x)"),
    ("BISECT_TERMS", "../../x"),
    ("MERGE_AUTOSTASH", "--index"),
    ("rebase-apply/author-script", "GIT_AUTHOR_NAME=x; touch x"),
    ("rebase-apply/apply-opt", "--unsafe-paths"),
    ("rebase-merge/head-name", "refs/heads/../../x"),
    ("rebase-merge/strategy", "../x"),
    ("rebase-merge/git-rebase-todo.backup", "exec x"),
    ("sequencer/todo", "x touch x"),
    ("reftable/tables.list", "../x"),
];

#[test]
fn what_git_would_run_or_use_later_is_renamed() {
    for fixture in SandboxFixture::for_each_user() {
        let create = UNSAFE_STATE.iter().map(|(name, text)| {
            format!("mkdir -p .git/$(dirname {name}); echo '{text}' > .git/{name}\n")
        });
        let create: String = create.collect();
        let (is_success, text) = run_after(&fixture, "true", &[&create]);
        assert!(is_success, "{text}");
        for (name, _) in UNSAFE_STATE {
            let git = fixture.path("home/work/.git");
            assert!(!git.join(name).exists(), "{name}: {text}");
        }
        assert_eq!(text.lines().count(), UNSAFE_STATE.len(), "{text}");
        // It is renamed once.
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let output = script(&fixture, Some(&confinement), "git branch -q next");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

// The state of the user stays, also if a command continues the work.
#[test]
fn what_the_user_left_in_a_git_directory_stays() {
    let setup = "echo a > .git/mine; git init -q ../outer; echo $(cd ..; pwd)/outer/.git/objects > .git/objects/info/alternates; for n in a b; do echo $n > $n; git add $n; git commit -qm $n; done; GIT_SEQUENCE_EDITOR='printf \"break\\npick main\\nexec touch ran\\nexec touch other\\n\" >' git rebase -q -i HEAD~1; touch keep";
    for fixture in SandboxFixture::for_each_user() {
        let commands = [
            "echo b >> .git/mine; sed -i 1d .git/rebase-merge/git-rebase-todo; git commit -q --allow-empty -m x",
        ];
        let (is_success, text) = run_after(&fixture, setup, &commands);
        assert!(is_success, "{text}");
        assert!(!text.contains("bub:"), "{text}");
        assert_outside(
            &fixture,
            "test -f keep -a -f .git/mine -a -f .git/objects/info/alternates && git rebase --continue && test -f ran -a -f other",
        );
        assert_outside(&fixture, "rm -rf ../outer");
    }
}

/// Work that takes several commands, and ordinary work of git.
const ORDINARY_WORK: &[&str] = &[
    "git rebase -q side || true",
    "test -d .git/rebase-merge && echo x > f && git add f && GIT_EDITOR=true git rebase --continue || true",
    "git rebase --abort && git status --porcelain",
    "git rebase -q -s ort -X theirs --apply side || true",
    "git rebase --quit 2>&1 || true; git checkout -qf main",
    "git merge -q side || test -s .git/MERGE_RR",
    "echo y > f; git add f; git commit -qm merged",
    "git cherry-pick side HEAD~2 || true",
    "git cherry-pick --abort",
    "git revert --no-edit HEAD~2 HEAD~3 || true",
    "git revert --abort || git revert --quit; git reset -q --hard",
    "git bisect start -- f \"it's\" && git bisect bad && git bisect good HEAD~4",
    "git bisect good; git bisect reset",
    "git format-patch -q -1 side -o p && git am -3 --whitespace=fix -C1 p/* || true",
    "git am --abort; rm -r p; echo z > f; git stash -q; git stash pop -q; git checkout -q f",
    "git notes add -m x; git tag -a v1 -m x; git gc -q; git fetch -q . side:other; git pull -q . side || true",
    "git update-index --index-version 4; git status; git update-index --split-index; git status; git update-index --no-split-index; git -c index.threads=2 update-index --index-version 3",
    "git sparse-checkout list || true; git worktree add -q tree; git -C tree commit -q --allow-empty -m x; git worktree remove tree || true",
    "git clone -q --shared . copy && git -C copy log -1 && git -C copy commit -q --allow-empty -m x; git fsck --lost-found; git maintenance run --task=commit-graph; git init -q --object-format=sha256 long; cd long; touch a b; git add a; git commit -qm x; git add b",
];

#[test]
fn the_state_of_ordinary_work_stays() {
    let setup = "git config rerere.enabled true; for n in 1 2 3 4 5 6; do echo $n > f; git add f; git commit -qm $n; done; git checkout -q -b side HEAD~3; echo side > f; git commit -qam side; git checkout -q main";
    for fixture in SandboxFixture::for_each_user() {
        assert_outside(
            &fixture,
            &format!("rm -rf .git; git init -q; git commit -q --allow-empty -m x; {setup}"),
        );
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        for command in ORDINARY_WORK {
            let output = script(&fixture, Some(&confinement), command);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {output:?}");
            assert!(!text.contains("bub:"), "{command}: {text}");
        }
    }
}

// What package managers, virtual environments and version control create.
#[test]
fn links_to_tools_grants_and_the_workspace_stay() {
    const LINKS: &[(&str, &str)] = &[
        ("../pkg/cli.js", "node_modules/.bin/pkg"),
        (".pnpm/dep/node_modules/dep", "node_modules/dep"),
        ("../dep/cli.js", "node_modules/.bin/dep"),
        ("/usr/bin/python3", "venv/bin/python3"),
        ("python3", "venv/bin/python"),
        ("lib", "venv/lib64"),
        ("$W/file", "absolute"),
        ("$W", "whole"),
        ("~/.cargo/bin/x", "tool"),
        ("~/.npm/x", "cache"),
        ("../../outside", "outside"),
        ("/tmp/build", "build"),
        ("/dev/null", "nothing"),
        ("missing", "dangling"),
        ("loop", "loop"),
        (".git/annex/objects/x", "annexed"),
    ];
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        assert!(confinement.grant("npm"));
        confinement.hidden.push(fixture.path("home/work/private"));
        let setup =
            "mkdir -p private/deep ~/.npm ~/.cargo/bin; ln -s ../../temp/x mine; ln -s / top";
        assert_outside(&fixture, &format!("rm -rf .git; git init -q; {setup}"));
        let create = LINKS
            .iter()
            .map(|(target, link)| format!("mkdir -p $(dirname {link}); ln -s {target} {link}\n"));
        let create: String = create.collect();
        for command in [create.as_str(), "true"] {
            let output = script(&fixture, Some(&confinement), command);
            assert!(output.status.success(), "{output:?}");
            assert!(output.stderr.is_empty(), "{output:?}");
        }
        let links = LINKS.iter().map(|(_, link)| *link).chain(["mine", "top"]);
        let missing: Vec<_> = links
            .filter(|link| !fixture.path("home/work").join(link).is_symlink())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        // A link that is new leads nowhere else.
        let output = script(
            &fixture,
            Some(&confinement),
            "mv mine other; ln -s top/proc/self/cwd cwd; ln -s private a; ln -s private/deep b",
        );
        let text = String::from_utf8_lossy(&output.stderr);
        for part in [
            "removed `other`, which led to `../../temp/x`: git could use or change what is there",
            "removed `a`, which led to `private`",
            "removed `b`, which led to `private/deep`",
            "removed `cwd`, which led to `top/proc/self/cwd`: git could use or change what is there",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}

fn enable(confinement: &Confinement, name: &str) -> Result<Vec<String>, String> {
    let directory = confinement.workspace.join(name);
    enable_repository(confinement, &directory).map_err(|error| error.to_string())
}

#[test]
fn the_user_enables_a_repository_after_a_review() {
    // The user who runs the commands enables the repository.
    let fixture = SandboxFixture::for_each_user().remove(0);
    {
        let setup = "safe h/pre-commit; git add h; git commit -qm h; git config core.hooksPath h";
        let commands = [
            "git worktree add -q tree; git init -q new; git -C new config core.fsmonitor ./x; git -C new config core.hooksPath hk; git -C new config include.path first; ln new/.git/config kept; echo x > new/.git/hooks/pre-commit; git init -q --bare bare.git; git -C bare.git config alias.x '!y'; mkdir bare.git/hk new/hk; touch bare.git/hk/update new/hk/pre-push; git -C bare.git config core.hooksPath hk; printf '[core]\\n\\tsshCommand = ./y\\n[include]\\n\\tpath = second\\n' > new/.git/first; printf '[alias]\\n\\tz = !y\\n' > new/.git/second",
        ];
        let (_, text) = run_after(&fixture, setup, &commands);
        for (name, finding) in [
            ("tree", "`core.hookspath` in"),
            ("new", "`config` is a link, or has other hard links"),
            ("bare.git", "`core.hookspath` is `hk`"),
        ] {
            let line = text
                .lines()
                .find(|line| line.ends_with(&format!("--enable {name}`")));
            assert!(line.is_some_and(|line| line.contains(finding)), "{text}");
        }
        assert_eq!(text.lines().count(), 3, "{text}");
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let state = "for d in tree new bare.git; do git -C $d rev-parse --git-dir; done 2>&1 | grep -c fatal";
        let disabled =
            || String::from_utf8_lossy(&script(&fixture, None, state).stdout).into_owned();
        // The directory of `new` is in the repository of the workspace.
        assert!(!fixture.path("home/work/new/.git/HEAD").exists());
        let findings = ["tree", "new", "bare.git"].map(|name| enable(&confinement, name).unwrap());
        fixture.give_home();
        assert_eq!(disabled(), "0\n", "{findings:?}");
        let has = |part: &str| {
            findings
                .iter()
                .flatten()
                .any(|finding| finding.contains(part))
        };
        for part in [
            "`core.fsmonitor` is `./x`",
            "it has `hooks/pre-commit`",
            "it has `hk/pre-push`",
            "it has `hk/update`",
            "`core.hookspath` in",
            "`alias.x`",
            "`core.sshcommand` is `./y` in `first`",
            "`alias.z` is `!y` in `second`",
        ] {
            assert!(has(part), "{part}: {findings:?}");
        }
        assert!(
            enable(&confinement, "new")
                .unwrap_err()
                .contains("no repository that bub disabled")
        );
        assert!(
            enable(&confinement, "..")
                .unwrap_err()
                .contains("not in the workspace")
        );
        // It stays enabled, and commands cannot change it, also not by another name.
        let change = "echo x >> kept; git -C new config a.b c || git -C bare.git config a.b c || echo x > tree/h/pre-commit";
        let output = script(&fixture, Some(&confinement), &format!("{SETUP}{change}"));
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(disabled(), "0\n", "{output:?}");
    }
}
