//! Checks whether the agent's commands can be confined, which limits apply, and whether the workspace has private files.

use std::{os::unix::fs::DirBuilderExt as _, sync::Arc};

use bub_agent::{Sandbox, Skills, WorkspaceExposure, shell::Launcher};
use bub_kernel::{Sender, ToolCaller};
use bub_sandbox::{Confinement, SandboxProfile};

use super::{CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let mut findings = check_commands(check_context);
    let workspace = check_context.framework.workspace();
    if let Some(exposure) = WorkspaceExposure::find(&check_context.settings, workspace) {
        let fix = "start the gateway with `-w DIR`, where DIR has no private files";
        findings.push(Finding::warning(exposure.to_string(), fix));
    }
    findings
}

fn check_commands(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    let skills = Arc::new(Skills::new(settings));
    let sandbox = Sandbox::new(Arc::clone(settings), skills, Launcher::current_program());
    let profile = sandbox.profile(&Sender::terminal(), ToolCaller::Model);
    if profile == SandboxProfile::Off {
        let text = "off for owners: the agent's commands can read and change all your files";
        let fix = "run `bub config set sandbox.profile workspace`";
        return vec![Finding::warning(text.to_owned(), fix)];
    }
    let sender = Sender::terminal();
    let workspace = check_context.framework.workspace();
    // The sandbox creates mount points in its temporary directory.
    let temp = std::env::temp_dir().join(format!("bub-doctor-{}", std::process::id()));
    let temp = scopeguard::guard(temp, |temp| {
        let _ = std::fs::remove_dir_all(temp);
    });
    let created = std::fs::DirBuilder::new().mode(0o700).create(&*temp);
    let confinement =
        created.and_then(|()| sandbox.confinement_with_temp(profile, &sender, &temp, workspace));
    let confinement = match confinement {
        // The check leaves nothing in the home directory.
        Ok(confinement) => Confinement {
            records: None,
            ..confinement
        },
        Err(error) => {
            let fix = "check the permissions of the workspace";
            return vec![Finding::warning(error.to_string(), fix)];
        }
    };
    if let Some(reason) = sandbox.unavailable_reason(&confinement) {
        let text = format!(
            "unavailable: {reason}; commands are asked about at a terminal and refused in the gateway"
        );
        let fix = "allow unprivileged user namespaces and enable Landlock, or set `sandbox.profile` to `off` if you accept the risk";
        return vec![Finding::warning(text, fix)];
    }
    let suffix = if confinement.network { "" } else { "out" };
    let mut findings = vec![Finding::ok(format!(
        "{profile}, with{suffix} network at the terminal"
    ))];
    if confinement.has_control_group() {
        return findings;
    }
    let is_limited =
        Launcher::current_program().is_some_and(|launcher| confinement.limits_processes(&launcher));
    if !is_limited {
        let text = "the limit on processes does not apply to root on kernels before 6.14";
        findings.push(Finding::warning(text.to_owned(), "run bub as another user"));
    }
    if confinement.limits.max_memory_bytes.is_some() {
        let text = "the limit on memory applies to each process, not to all together: bub cannot create a control group";
        findings.push(Finding::ok(text.to_owned()));
    }
    findings
}
