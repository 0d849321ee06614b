//! Checks whether the agent's commands can be confined, and which limits apply.

use std::sync::Arc;

use bub_agent::{Sandbox, Skills, shell::Launcher};
use bub_kernel::{Sender, SessionId, ToolCaller};
use bub_sandbox::SandboxProfile;

use super::{CheckContext, Finding};

pub(super) fn check(check_context: &CheckContext<'_>) -> Vec<Finding> {
    let settings = &check_context.settings;
    let skills = Arc::new(Skills::new(settings));
    let sandbox = Sandbox::new(Arc::clone(settings), skills, Launcher::current_program());
    let profile = sandbox.profile(&Sender::terminal(), ToolCaller::Model);
    if profile == SandboxProfile::Off {
        let text = "off for owners: `bub config set sandbox.profile workspace` confines the agent's commands";
        return vec![Finding::ok(text.to_owned())];
    }
    let (sender, session) = (Sender::terminal(), SessionId::from("sandbox"));
    let workspace = check_context.framework.workspace();
    let confinement = match sandbox.confinement(profile, &sender, &session, workspace) {
        Ok(confinement) => confinement,
        Err(error) => {
            let fix = "check the permissions of the home and of the workspace";
            return vec![Finding::warning(error.to_string(), fix)];
        }
    };
    if let Some(reason) = sandbox.unavailable_reason(&confinement) {
        let text = format!(
            "unavailable: {reason}; commands are asked about at a terminal and refused in the gateway"
        );
        let fix = "enable user namespaces and Landlock, or set `sandbox.profile` to `off` if you accept the risk";
        return vec![Finding::warning(text, fix)];
    }
    let network = if confinement.network {
        "with"
    } else {
        "without"
    };
    let mut findings = vec![Finding::ok(format!(
        "{profile}, {network} network at the terminal"
    ))];
    if rustix::process::getuid().is_root() {
        let text = "the limit on processes does not apply to root".to_owned();
        findings.push(Finding::warning(text, "run bub as another user"));
    }
    findings
}
