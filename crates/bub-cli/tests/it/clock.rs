//! Tests a gateway while the system clock jumps by days and years between the steps of a turn.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bub_testkit::model::ModelServer;

use crate::{
    gateway_client::{CallbackServer, post, start_gateway_with},
    gateway_kill::writing_model,
    sandbox::Sandbox,
};

/// Library that is preloaded before the C library. It shifts the time of day by the seconds in a file.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, id, now);
    const char *path = getenv("CLOCK_OFFSET");
    if (failed || id != CLOCK_REALTIME || !path) return failed;
    char text[32] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) now->tv_sec += atoll(text);
        close(file);
    }
    return 0;
}
"#;

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;
/// Clock jumps. Idempotency keys and failing replies expire after a day; a clock without a battery starts in 1970.
const JUMPS: [i64; 8] = [
    0,
    HOUR,
    -HOUR,
    23 * HOUR,
    0,
    -25 * HOUR,
    10 * YEAR,
    -56 * YEAR,
];

fn build_clock(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    // A linker for Rust programs implies a C compiler.
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());
    library
}

// L1: nothing depends on a monotonic clock: accepted messages are answered once, and tapes stay in order.
#[test]
fn a_clock_that_jumps_loses_and_doubles_nothing() {
    for durability in ["os", "always"] {
        let (tools, sandbox, model) = (
            tempfile::tempdir().unwrap(),
            Sandbox::new(),
            ModelServer::start(),
        );
        let (library, offset) = (build_clock(tools.path()), tools.path().join("offset"));
        let jump = {
            let (offset, next) = (offset.clone(), Arc::new(AtomicUsize::new(0)));
            move || {
                let number = next.fetch_add(1, Ordering::SeqCst);
                let by = JUMPS[number % JUMPS.len()];
                // The model and the client jump at the same time, so each jump has its own draft.
                let draft = offset.with_extension(format!("draft{number}"));
                std::fs::write(&draft, by.to_string()).unwrap();
                std::fs::rename(&draft, &offset).unwrap();
            }
        };
        jump();
        let for_model = jump.clone();
        model
            .forget_requests()
            .answer_with(move |request| writing_model(request, |_| for_model()));
        let delivered = CallbackServer::default();
        let callback = delivered.listen(|| 200);
        let settings = [
            ("BUB_WEBHOOK_ROLE", "owner"),
            ("BUB_POLICY_UNTRUSTED_CONTENT", "allow"),
            ("BUB_TAPE_DURABILITY", durability),
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("CLOCK_OFFSET", offset.to_str().unwrap()),
        ];
        let start = || start_gateway_with(&sandbox, &model, &[], &settings);
        let mut ids = Vec::new();
        let mut gateway = start();
        for key in 0..24 {
            ids.push(post(&gateway.address, key, key % 3, &callback).unwrap());
            if key % 4 == 3 {
                gateway.kill();
                jump();
                gateway = start();
            }
            if key % 5 == 4 {
                delivered.reply(ids.last().unwrap(), 0);
            }
        }
        assert_eq!(
            delivered.missing(&ids.iter()),
            0,
            "lost with durability {durability}"
        );
        gateway.stop();
        for (id, replies) in delivered.all() {
            let distinct: HashSet<_> = replies.iter().map(|(delivery, _)| delivery).collect();
            assert_eq!(distinct.len(), 1, "{id}: {replies:?}");
        }
        let log = std::fs::read_to_string(sandbox.workspace().join("log")).unwrap();
        let lines: HashSet<_> = log.lines().collect();
        assert_eq!(lines.len(), log.lines().count(), "a tool ran twice: {log}");
        // The program has seen jumps of years.
        let tapes = std::fs::read_dir(sandbox.home().join("tapes"))
            .unwrap()
            .map(|file| file.unwrap().path());
        let text: String = tapes
            .filter_map(|path| std::fs::read_to_string(path).ok())
            .collect();
        assert!(
            text.contains("\"date\": \"197") && text.contains("\"date\": \"203"),
            "the clock did not jump"
        );
        sandbox.bub(["tape", "check"]).ok();
    }
}
