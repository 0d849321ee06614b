//! The filter for system calls of a confined command.
//!
//! The filter refuses calls with which a command could leave its confinement, or that reach large and rarely tested
//! parts of the kernel. Other calls are allowed: the namespaces and Landlock decide what they reach.

use std::{collections::BTreeMap, io};

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Calls that are always refused.
const REFUSED: &[c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Parts of the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The whole machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
];
/// Calls that are refused on x86-64 only, because other architectures do not have them.
#[cfg(target_arch = "x86_64")]
const REFUSED_ON_ARCHITECTURE: &[c_long] =
    &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_ON_ARCHITECTURE: &[c_long] = &[];

/// Flags with which `clone` creates namespaces.
const NAMESPACE_FLAGS: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];
/// Address families that a command can use. Others reach the host or hardware.
const SOCKET_FAMILIES: &[i32] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];
/// Bits of a mode with which a program has the rights of the file's owner or group. Outside the sandbox, they would apply.
const SET_ID_BITS: &[u32] = &[libc::S_ISUID, libc::S_ISGID];
/// Calls with a mode, and the number of that argument.
const MODE_CALLS: &[(c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
];
#[cfg(target_arch = "x86_64")]
const MODE_CALLS_OF_ARCHITECTURE: &[(c_long, u8)] = &[
    (libc::SYS_chmod, 1),
    (libc::SYS_creat, 1),
    (libc::SYS_mknod, 1),
];
#[cfg(not(target_arch = "x86_64"))]
const MODE_CALLS_OF_ARCHITECTURE: &[(c_long, u8)] = &[];
/// Calls that open a file, and the number of the argument with flags. The mode follows, if they create a file.
#[cfg(target_arch = "x86_64")]
const OPEN_CALLS: &[(c_long, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OPEN_CALLS: &[(c_long, u8)] = &[(libc::SYS_openat, 2)];
/// Flags with which a call creates a file.
const CREATE_FLAGS: &[i32] = &[libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];
/// Calls whose arguments are in memory, where a filter cannot check them. Programs fall back to others.
const UNCHECKABLE: &[c_long] = &[libc::SYS_clone3, libc::SYS_openat2];
/// Requests that type into a terminal.
const TERMINAL_REQUESTS: &[u64] = &[libc::TIOCSTI, libc::TIOCLINUX];
/// Bit of system calls of the x32 interface, which are other numbers for the same calls.
const X32_BIT: c_long = 0x4000_0000;

/// Installs the filter for this process and its children.
pub(super) fn restrict() -> io::Result<()> {
    let mut refused = BTreeMap::new();
    for call in REFUSED.iter().chain(REFUSED_ON_ARCHITECTURE) {
        refused.insert(*call, Vec::new());
    }
    let flags = NAMESPACE_FLAGS
        .iter()
        .map(|flag| bits_rule([(0, flag.cast_unsigned())]));
    refused.insert(libc::SYS_clone, flags.collect::<io::Result<_>>()?);
    refused.insert(
        libc::SYS_socket,
        vec![other_values_rule(0, SOCKET_FAMILIES)?],
    );
    let requests = TERMINAL_REQUESTS
        .iter()
        .map(|request| value_rule(1, *request));
    refused.insert(libc::SYS_ioctl, requests.collect::<io::Result<_>>()?);
    for (call, mode) in MODE_CALLS.iter().chain(MODE_CALLS_OF_ARCHITECTURE) {
        let bits = SET_ID_BITS.iter().map(|bit| bits_rule([(*mode, *bit)]));
        refused.insert(*call, bits.collect::<io::Result<_>>()?);
    }
    for (call, flags) in OPEN_CALLS {
        let bits = SET_ID_BITS.iter().flat_map(|bit| {
            let creates = CREATE_FLAGS.iter().map(|flag| flag.cast_unsigned());
            creates.map(move |flag| bits_rule([(*flags, flag), (flags + 1, *bit)]))
        });
        refused.insert(*call, bits.collect::<io::Result<_>>()?);
    }
    install(refused, libc::EPERM)?;
    let uncheckable = UNCHECKABLE.iter().map(|call| (*call, Vec::new()));
    install(uncheckable.collect(), libc::ENOSYS)
}

/// Installs a filter that answers the given calls with an error.
fn install(calls: BTreeMap<c_long, Vec<SeccompRule>>, error: i32) -> io::Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let mut all = calls.clone();
    if architecture == TargetArch::x86_64 {
        all.extend(
            calls
                .into_iter()
                .map(|(call, rules)| (call | X32_BIT, rules)),
        );
    }
    let refuse = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(all, SeccompAction::Allow, refuse, architecture);
    let program: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}

/// Matches calls whose arguments contain all the bits.
fn bits_rule(bits: impl IntoIterator<Item = (u8, u32)>) -> io::Result<SeccompRule> {
    let condition = |(argument, bits)| {
        let bits = u64::from(bits);
        (argument, SeccompCmpOp::MaskedEq(bits), bits)
    };
    rule(bits.into_iter().map(condition))
}

/// Matches calls whose argument has a value.
fn value_rule(argument: u8, value: u64) -> io::Result<SeccompRule> {
    rule([(argument, SeccompCmpOp::Eq, value)])
}

/// Matches calls whose argument has none of the values.
fn other_values_rule(argument: u8, values: &[i32]) -> io::Result<SeccompRule> {
    let different = |value: &i32| {
        let value = u64::from(value.cast_unsigned());
        (argument, SeccompCmpOp::Ne, value)
    };
    rule(values.iter().map(different))
}

fn rule(conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u64)>) -> io::Result<SeccompRule> {
    let condition = |(argument, operator, value)| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let conditions: Result<_, _> = conditions.into_iter().map(condition).collect();
    conditions
        .and_then(SeccompRule::new)
        .map_err(io::Error::other)
}
