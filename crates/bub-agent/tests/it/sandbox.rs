//! Which confinement the settings and the sender give to a command.

use std::{fs, sync::Arc};

use bub_agent::{Sandbox, Skills};
use bub_kernel::{Role, Sender, ToolCaller};
use bub_sandbox::SandboxProfile;
use tempfile::TempDir;

use crate::harness::load_settings;

fn sender(role: Role) -> Sender {
    let mut sender = Sender::terminal();
    sender.role = role;
    "telegram".clone_into(&mut sender.channel);
    "7".clone_into(&mut sender.id);
    sender
}

// L7: the network is on for the owner at the terminal only, unless a setting says otherwise; only commands
// of the model and of other users are confined, and no setting lets other users out.
#[test]
fn the_sender_and_the_settings_decide_on_network_and_profile() {
    use SandboxProfile::{Off, Workspace};
    let (terminal, remote, member) = (
        Sender::terminal(),
        sender(Role::Owner),
        sender(Role::Member),
    );
    let mut member_at_terminal = Sender::terminal();
    member_at_terminal.role = Role::Member;
    for (variable, value, networks, profiles) in [
        (
            "BUB_SANDBOX_NETWORK",
            "auto",
            [true, false, false, false],
            [Workspace; 4],
        ),
        ("BUB_SANDBOX_NETWORK", "on", [true; 4], [Workspace; 4]),
        ("BUB_SANDBOX_NETWORK", "off", [false; 4], [Workspace; 4]),
        (
            "BUB_SANDBOX_PROFILE",
            "off",
            [true, false, false, false],
            [Off, Off, Workspace, Workspace],
        ),
    ] {
        let dir = TempDir::new().unwrap();
        let (workspace, temp) = (dir.path().join("workspace"), dir.path().join("temp"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&temp).unwrap();
        let home = dir.path().join("home").into_os_string();
        let settings = Arc::new(load_settings([
            ("BUB_HOME", home),
            (variable, value.into()),
        ]));
        let skills = Arc::new(Skills::new(&settings));
        let sandbox = Sandbox::new(settings, skills, None);
        let senders = [&terminal, &remote, &member, &member_at_terminal];
        let cases = senders.into_iter().zip(networks).zip(profiles);
        for ((sender, network), profile) in cases {
            let case = format!("{variable}={value} {sender:?}");
            assert_eq!(
                sandbox.profile(sender, ToolCaller::Model),
                profile,
                "{case}"
            );
            let confinement = sandbox
                .confinement_with_temp(Workspace, sender, &temp, &workspace)
                .unwrap();
            assert_eq!(confinement.network, network, "{case}");
        }
    }
}
