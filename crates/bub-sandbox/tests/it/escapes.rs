//! L7: what a confined command can and cannot reach.

use bub_sandbox::{ResourceLimits, SandboxProfile};

use crate::harness::{SECRET, SandboxFixture};

/// Runs a script confined in the profile, as each user, and returns stdout and stderr of each run.
fn outputs(profile: SandboxProfile, script: &str) -> Vec<(bool, String)> {
    let run = |fixture: &SandboxFixture| {
        let output = fixture.run(&fixture.confinement(profile), script);
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    };
    SandboxFixture::for_each_user().iter().map(run).collect()
}

fn assert_works(profile: SandboxProfile, script: &str) {
    for (is_success, text) in outputs(profile, script) {
        assert!(is_success, "{script}: {text}");
    }
}

fn assert_refused(profile: SandboxProfile, script: &str) {
    for (is_success, text) in outputs(profile, script) {
        assert!(!is_success, "{script}: {text}");
        assert!(!text.contains(SECRET), "{script}: {text}");
        assert!(!text.contains("bub: the sandbox"), "{script}: {text}");
    }
}

#[test]
fn work_in_the_workspace_and_its_temporary_directory_succeeds() {
    for script in [
        "echo new > new && cat new file && rm new && mkdir d && mv file d/file && ln d/file other",
        "echo x > /tmp/x && cat /tmp/x /var/tmp/x && mktemp -d",
        "cat /etc/passwd /proc/self/status > /dev/null && ls /usr /proc/self/fd",
        "exec 3<>/dev/tcp/127.0.0.1/1; test $? = 1 && test -d /sys/class/net/lo",
        "! echo in > ~/data && ! mkdir ~/.config && echo in > ~/.cache/x && cat ~/.cache/x && test ! -e ~/secret",
        "(sleep 0.01; true) & wait; setsid true; timeout 5 true",
        // Signals to the first process of the namespace, and to the supervisor, which the command does not see.
        "kill -STOP 1; kill -KILL 1; test $PPID = 1 && grep -q 'PPid:.0$' /proc/1/status",
        "git init -q other && cd other && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
        "git status > /dev/null; cat .git/config .env",
        "python3 -c 'import socket,threading; s=socket.create_server((\"127.0.0.1\",0)); c=socket.create_connection(s.getsockname()); print(c)'",
        "python3 -c 'import multiprocessing as m; m.set_start_method(\"spawn\"); p=m.Process(target=print,args=(1,)); p.start(); p.join(); exit(p.exitcode)'",
    ] {
        assert_works(SandboxProfile::Workspace, script);
    }
}

#[test]
fn files_outside_cannot_be_read_or_written() {
    for script in [
        "cat ~/secret",
        "cat ../secret",
        "cat ../../outside/file",
        "cat /proc/self/root/$HOME/secret",
        "cat /proc/self/cwd/../secret",
        "ln -s ~/secret link && cat link",
        "ln ../../outside/file hard",
        "ls ../../outside",
        "echo x > ../../outside/new",
        "echo x >> ../../outside/file",
        "rm ../../outside/file",
        "mv file ../../outside/file2",
        "echo x > /etc/new",
        "echo x > /usr/new",
        "touch /var/lib/new",
        "cat /etc/shadow | grep -q .",
        "chmod 777 /etc",
        "test -e /run/docker.sock || ls /run | grep -q .",
        "ls /root | grep -q .",
        "head -c1 /dev/vda /dev/sda /dev/mem",
        "mknod node b 1 1",
        // A core file, whose place may be a program outside.
        "sh -c 'ulimit -c unlimited; kill -SEGV $$'",
        "bash -c 'kill -SEGV $$'; ls | grep core",
    ] {
        assert_refused(SandboxProfile::Workspace, script);
    }
}

#[test]
fn protected_paths_of_the_workspace_stay_as_they_are() {
    for script in [
        "echo x > .env",
        "rm .env",
        "mv .env other",
        "echo x > .git/config",
        "echo x > .git/hooks/pre-commit",
        "mv .git/hooks other",
        "rm -rf .git/hooks",
        "mv .git other",
        "git config core.fsmonitor ./evil",
    ] {
        assert_refused(SandboxProfile::Workspace, script);
    }
}

#[test]
fn a_link_in_place_of_the_repository_opens_nothing() {
    for fixture in SandboxFixture::for_each_user() {
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let outside = fixture.path("outside/hooks");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), SECRET).unwrap();
        let git = fixture.path("home/work/.git");
        std::fs::rename(&git, fixture.path("home/work/moved")).unwrap();
        std::os::unix::fs::symlink(fixture.path("outside"), &git).unwrap();
        let output = fixture.run(
            &confinement,
            "cat .git/hooks/file || echo x > .git/hooks/new",
        );
        assert!(!output.status.success(), "{output:?}");
    }
}

#[test]
fn the_read_only_profile_writes_only_temporary_files() {
    for script in [
        "echo x > file",
        "touch new",
        "rm file",
        "chmod 700 file",
        "mkdir d",
    ] {
        assert_refused(SandboxProfile::ReadOnly, script);
    }
    assert_works(
        SandboxProfile::ReadOnly,
        "cat file && echo x > /tmp/x && cat /tmp/x",
    );
}

#[test]
fn other_processes_are_out_of_reach() {
    for fixture in SandboxFixture::for_each_user() {
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let other = std::process::id();
        for script in [
            format!("kill -STOP {other}"),
            format!("kill -0 {other}"),
            format!("cat /proc/{other}/environ"),
            format!("ls /proc/{other}/root/"),
            format!("head -c1 /proc/{other}/mem"),
            format!("prlimit --pid {other} --core=0:0"),
            "cat /proc/1/environ".to_owned(),
            "readlink /proc/1/fd/0".to_owned(),
            "ls /proc/1/root/".to_owned(),
            "head -c1 /proc/1/mem".to_owned(),
            "ls -d /proc/[0-9]* | grep -v -e '/1$' -e '/2$' -e '/3$' -e '/4$'".to_owned(),
            format!("renice -n 19 {other}"),
            format!("taskset -p 1 {other}"),
        ] {
            let output = fixture.run(&confinement, &script);
            assert!(!output.status.success(), "{script}: {output:?}");
        }
    }
}

#[test]
fn terminals_of_the_user_are_out_of_reach_and_own_ones_work() {
    assert_refused(SandboxProfile::Workspace, "ls /dev/pts | grep -q '[0-9]'");
    assert_works(
        SandboxProfile::Workspace,
        "python3 -c 'import pty,sys; sys.exit(pty.spawn([\"tty\"]))'",
    );
}

#[test]
fn the_kernel_refuses_calls_that_lead_outside() {
    for script in [
        "unshare -U true",
        "unshare -Ur true",
        "unshare -m true",
        "mount -t tmpfs none /tmp",
        "umount /tmp",
        "nsenter -t 1 -m true",
        "chroot / true",
        "su -c true daemon < /dev/null",
        // io_uring_setup, and ptrace(PTRACE_TRACEME): they fail with EPERM.
        "python3 -c 'import ctypes; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(425,1,0); exit(r==-1 and ctypes.get_errno()==1)'",
        "python3 -c 'import ctypes; l=ctypes.CDLL(None,use_errno=True); r=l.ptrace(0,0,0,0); exit(r==-1 and ctypes.get_errno()==1)'",
        // bpf, userfaultfd, perf_event_open, keyctl, kexec_load, pidfd_getfd and clone3.
        "python3 -c 'import ctypes; l=ctypes.CDLL(None,use_errno=True); exit(all(l.syscall(n,1,0,0,0,0)==-1 and ctypes.get_errno() in (1,38) for n in (321,323,298,250,246,438,435)))'",
        "python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'",
        "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libpthread.so.0 cat ~/secret",
        // A program in memory runs, and is confined as any other.
        "python3 -c 'import os; f=os.memfd_create(\"cat\"); os.write(f, open(\"/bin/cat\",\"rb\").read()); os.execve(f, [\"cat\", os.environ[\"HOME\"]+\"/secret\"], os.environ)'",
        "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect(\"\\0bub-sandbox-test\")'",
    ] {
        assert_refused(SandboxProfile::Workspace, script);
    }
}

#[test]
fn an_abstract_socket_of_another_process_cannot_be_reached() {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    };
    let name = format!("bub-sandbox-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect(\"\\0{name}\")'"
    );
    for fixture in SandboxFixture::for_each_user() {
        assert!(
            fixture.run_outside(&script).status.success(),
            "the test cannot connect without confinement"
        );
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        for network in [false, true] {
            confinement.network = network;
            let output = fixture.run(&confinement, &script);
            assert!(!output.status.success(), "{output:?}");
        }
    }
}

// A Docker socket, a session bus and the like, at typical paths and in other directories.
#[test]
fn a_socket_of_another_program_cannot_be_reached() {
    use std::os::unix::{fs::PermissionsExt, net::UnixListener};
    for fixture in SandboxFixture::for_each_user() {
        for name in ["home/.docker/run/docker.sock", "outside/bus"] {
            let path = fixture.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _listener = UnixListener::bind(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
            let path = path.display();
            let script = format!(
                "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect(\"{path}\")'"
            );
            let outside = fixture.run_outside(&script);
            assert!(outside.status.success(), "{outside:?}");
            let mut confinement = fixture.confinement(SandboxProfile::Workspace);
            confinement.network = true;
            let output = fixture.run(&confinement, &script);
            assert!(!output.status.success(), "{output:?}");
        }
    }
}

#[test]
fn a_program_with_the_set_user_id_bit_gains_nothing() {
    use std::os::unix::fs::PermissionsExt;
    for fixture in SandboxFixture::for_each_user() {
        let program = fixture.path("home/work/id");
        std::fs::copy("/usr/bin/id", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let script = "grep -q 'NoNewPrivs:.*1' /proc/self/status && grep -q 'CapBnd:.*00000000' /proc/self/status && test $(./id -u) = $(id -u)";
        let output = fixture.run(&confinement, script);
        assert!(output.status.success(), "{output:?}");
    }
}

// Outside the sandbox, the bits would give other users the rights of the file's owner.
#[test]
fn files_with_the_set_user_id_bit_cannot_be_created() {
    for script in [
        "chmod u+s file",
        "chmod g+s file",
        "chmod 6755 file",
        "install -m 4755 file other",
        "cp file other && python3 -c 'import os; os.fchmod(os.open(\"other\", os.O_RDONLY), 0o4755)'",
        "python3 -c 'import os; os.open(\"new\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
        "python3 -c 'import os; os.open(\".\", os.O_TMPFILE | os.O_RDWR, 0o4755)'",
        "python3 -c 'import os; os.mknod(\"new\", 0o104755)'",
        // creat, fchmodat2, and openat2 whose mode is in memory.
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); exit(l.syscall(85,b\"new\",0o4755) < 0)'",
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); exit(l.syscall(452,-100,b\"file\",0o4755,0) < 0)'",
        "python3 -c 'import ctypes; l=ctypes.CDLL(None); h=(ctypes.c_uint64*3)(0o101,0o4755,0); exit(l.syscall(437,-100,b\"new\",h,24) < 0)'",
    ] {
        for fixture in SandboxFixture::for_each_user() {
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            let output = fixture.run(&confinement, script);
            let found = fixture.run_outside("find . -perm /6000 -type f");
            assert!(!output.status.success(), "{script}: {output:?}");
            assert_eq!(found.stdout, b"", "{script}");
        }
    }
    assert_works(
        SandboxProfile::Workspace,
        "chmod 1777 . && chmod 755 file && install -m 700 file other && umask 0 && touch new",
    );
}

// A socket that another program has in the workspace. One that no program listens at can be replaced.
#[test]
fn a_socket_of_another_program_in_the_workspace_cannot_be_reached() {
    use std::os::unix::{fs::PermissionsExt, net::UnixListener};
    for fixture in SandboxFixture::for_each_user() {
        let path = fixture.path("home/work/d/live");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let live = UnixListener::bind(&path).unwrap();
        live.set_nonblocking(true).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        drop(UnixListener::bind(fixture.path("home/work/stale")).unwrap());
        fixture.give_home();
        let script =
            "python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect(\"d/live\")'";
        for profile in [SandboxProfile::Workspace, SandboxProfile::ReadOnly] {
            let output = fixture.run(&fixture.confinement(profile), script);
            assert!(!output.status.success(), "{output:?}");
        }
        assert!(live.accept().is_err(), "no one connected");
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let output = fixture.run(&confinement, "mv d e || rm stale");
        assert!(output.status.success(), "{output:?}");
    }
}

// Double fork, setsid, a closed output: the process belongs to the namespace of the command.
#[test]
fn no_process_survives_its_command_or_a_killed_supervisor() {
    use std::io::Read;
    let daemon = "(setsid sh -c 'trap \"\" TERM HUP INT; while true; do sleep 1000; done' &) ; ";
    for fixture in SandboxFixture::for_each_user() {
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        // The daemon has the output, so this returns only when it has ended.
        let output = fixture.run(&confinement, daemon);
        assert!(output.status.success(), "{output:?}");
        let mut supervised =
            fixture.start_supervised(&confinement, &format!("{daemon} echo up; wait; sleep 1000"));
        let mut stdout = supervised.child.stdout.take().unwrap();
        let mut up = [0; 3];
        stdout.read_exact(&mut up).unwrap();
        supervised.child.kill().unwrap();
        supervised.child.wait().unwrap();
        // The end of the output: no process has it any more.
        stdout.read_to_end(&mut Vec::new()).unwrap();
    }
}

// `bub sandbox` that is ended with its command: what it planted is renamed anyway.
#[test]
fn a_command_that_is_ended_early_leaves_nothing_behind() {
    use std::io::Read;
    let plant = "trap '' TERM; echo evil > AGENTS.md; git init -q new; git -C new config core.fsmonitor ./evil; echo up; while true; do sleep 1000; done";
    for signal in ["TERM", "INT", "HUP", "KILL"] {
        for fixture in SandboxFixture::for_each_user() {
            let confinement = fixture.confinement(SandboxProfile::Workspace);
            // The shell stands for bub: it starts the command and ends.
            let mut child = fixture.start_below_shell(&confinement, plant);
            let mut stdout = child.stdout.take().unwrap();
            let mut up = [0; 3];
            stdout.read_exact(&mut up).unwrap();
            let target = child.id();
            let output = fixture.run_outside(&format!("kill -{signal} {target}"));
            assert!(output.status.success(), "{output:?}");
            child.wait().unwrap();
            // The process that renames has the output, too.
            stdout.read_to_end(&mut Vec::new()).unwrap();
            let work = fixture.path("home/work");
            assert!(!work.join("AGENTS.md").exists(), "{signal}");
            assert!(!work.join("new/.git/HEAD").exists(), "{signal}");
        }
    }
}

#[test]
fn ten_thousand_processes_are_not_started() {
    let script = r"python3 -c '
import os, signal
n = 0
try:
    while n < 10000:
        if os.fork() == 0: signal.pause()
        n += 1
except OSError: pass
print(n); exit(n >= 10000)'";
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.limits.max_processes = Some(400);
        if !confinement.limits_processes(&crate::harness::launcher()) {
            // `bub doctor` says so: root on a kernel before 6.14.
            continue;
        }
        let output = fixture.run(&confinement, script);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn without_network_only_the_command_itself_is_reachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        assert!(!fixture.run(&confinement, &script).status.success());
        confinement.network = true;
        let output = fixture.run(&confinement, &script);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn resources_are_limited() {
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.limits = ResourceLimits {
            max_processes: Some(64),
            max_memory_bytes: Some(256 << 20),
            max_file_bytes: Some(1 << 20),
        };
        for script in [
            "truncate -s 100G sparse",
            "head -c 2000000 /dev/zero > big",
            "python3 -c 'x = bytearray(1 << 30)'",
        ] {
            let output = fixture.run(&confinement, script);
            assert!(!output.status.success(), "{script}: {output:?}");
        }
        let output = fixture.run(&confinement, "ulimit -c && ulimit -u");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "0\n64\n");
    }
}

#[test]
fn grants_open_exactly_their_paths() {
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.readable.push(fixture.path("home/secret"));
        confinement.writable.push(fixture.path("outside"));
        let output = fixture.run(&confinement, "cat ~/secret && echo new > ../../outside/new");
        assert!(output.status.success(), "{output:?}");
        assert!(fixture.path("outside/new").exists());
        let output = fixture.run(&confinement, "echo x > ~/secret");
        assert!(!output.status.success(), "{output:?}");
        confinement.hidden.push(fixture.path("outside"));
        confinement.writable.clear();
        assert!(
            !fixture
                .run(&confinement, "cat ../../outside/file")
                .status
                .success()
        );
    }
}

#[test]
fn a_supervised_command_is_confined_and_cannot_redirect_git() {
    for fixture in SandboxFixture::for_each_user() {
        let confinement = fixture.confinement(SandboxProfile::Workspace);
        let script = "echo /evil > .git/commondir && cat .git/commondir && ! cat ~/secret && kill -STOP 1 && kill -KILL 1 && exit 7";
        let reports = fixture.supervise(&confinement, script);
        assert!(reports.ends_with("exited 7 alone\n"), "{reports}");
        assert!(!fixture.path("home/work/.git/commondir").exists());
    }
}

#[test]
fn a_command_that_cannot_be_confined_does_not_start() {
    for fixture in SandboxFixture::for_each_user() {
        let mut confinement = fixture.confinement(SandboxProfile::Workspace);
        confinement.workspace = "/".into();
        let output = fixture.run(&confinement, "echo started");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_eq!(output.stdout, b"");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            text.starts_with("bub: the sandbox cannot start `bash`: "),
            "{text}"
        );
    }
}
