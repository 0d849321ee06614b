//! Test program that runs another program with stdin as its controlling terminal.
#![allow(clippy::expect_used, reason = "a test that cannot begin stops here")]

use std::{os::unix::process::CommandExt as _, process::Command};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let program = args.next().expect("a program to run");
    rustix::process::setsid().expect("a new session");
    rustix::process::ioctl_tiocsctty(std::io::stdin()).expect("a terminal as stdin");
    let error = Command::new(program).args(args).exec();
    unreachable!("{error}");
}
