//! Decisions of the policy, and attempts to bypass it.

use std::sync::Arc;

use bub_agent::{
    command::{self, CommaCommand},
    files::FileAccess,
    policy::{Policy, PolicyAction, PolicyDecision},
};
use bub_kernel::{Envelope, Inbound, Role, Sender, ToolSpec};
use bub_settings::Settings;
use serde_json::{Map, Value, json};

use crate::harness::load_settings;

pub(crate) fn settings(pairs: &[(&str, &str)]) -> Settings {
    let pairs = pairs
        .iter()
        .copied()
        .chain([("BUB_HOME", "/nowhere"), ("HOME", "/nowhere")]);
    load_settings(pairs)
}

fn policy(rules: &Value) -> Policy {
    Policy::new(&settings(&[("BUB_POLICY_RULES", &rules.to_string())]))
}

pub(crate) fn tool(name: &str) -> ToolSpec {
    ToolSpec::new(name, "", json!({"type": "object", "properties": {}}))
}

pub(crate) fn sender_with_role(role: Role) -> Sender {
    let text = str::to_owned;
    Sender {
        role,
        channel: text("chat"),
        chat_id: text("7"),
        id: text("ada"),
        name: text("Ada"),
    }
}

pub(crate) fn map(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        panic!("{value}")
    };
    map
}

fn decide(policy: &Policy, role: Role, name: &str, arguments: Value) -> PolicyDecision {
    policy.evaluate(&sender_with_role(role), &tool(name), &map(arguments))
}

// L7, W-37
#[test]
fn without_rules_owners_may_do_all_members_may_read_and_guests_nothing() {
    let policy = policy(&json!([]));
    let harmless = [
        "tape.info",
        "tape.search",
        "tape.read",
        "tape.anchors",
        "tape.handoff",
        "skill",
        "web.fetch",
        "spill.read",
        "help",
        "fs.read",
        "quit",
    ];
    let others = [
        "bash",
        "bash.output",
        "bash.kill",
        "fs.write",
        "fs.edit",
        "tape.reset",
        "memory.search",
        "subagent",
        "model",
        "reasoning_effort",
        "plugin.tool",
        "FS.read",
        "fs_read",
        "fs.read ",
    ];
    for name in harmless.iter().chain(&others) {
        let action = |role| decide(&policy, role, name, json!({})).action;
        let expected = if harmless.contains(name) {
            PolicyAction::Allow
        } else {
            PolicyAction::Deny
        };
        assert_eq!(
            (
                action(Role::Owner),
                action(Role::Member),
                action(Role::Guest)
            ),
            (PolicyAction::Allow, expected, PolicyAction::Deny),
            "{name}"
        );
    }
    assert_eq!(
        policy
            .evaluate(&Sender::terminal(), &tool("bash"), &Map::new())
            .action,
        PolicyAction::Allow
    );
    assert_eq!(Sender::default().role, Role::Guest);
}

// W-33, W-34: a comma command cannot bypass the policy.
#[test]
fn a_comma_command_of_a_guest_or_member_runs_nothing() {
    let policy = policy(&json!([]));
    let CommaCommand::Shell { line } = command::parse(", rm -rf x", &[]).unwrap() else {
        panic!("no shell line")
    };
    for role in [Role::Guest, Role::Member] {
        let policy_decision = decide(&policy, role, "bash", json!({"cmd": line}));
        assert_eq!(policy_decision.action, PolicyAction::Deny);
        let message = policy_decision.denial_error("bash").message().to_owned();
        assert!(
            message.starts_with("Tool 'bash' denied by policy: "),
            "{message}"
        );
    }
    assert_eq!(
        decide(&policy, Role::Guest, "help", json!({})).action,
        PolicyAction::Deny
    );
}

#[test]
fn the_first_rule_that_fits_decides_and_says_so() {
    let policy = policy(&json!([
        {"roles": ["member"], "channels": ["chat"], "tools": ["bash"], "arguments": {"cmd": "ls*"}, "action": "allow"},
        {"tools": "bash", "roles": ["owner", "member"], "action": "ask", "reason": "shell commands are reviewed"},
        {"tools": ["fs.*", "web.*"], "roles": "owner", "action": "deny"},
        {"channels": ["other*"], "action": "deny"},
    ]));
    let check = |role, name, arguments, action, rule: &str| {
        let policy_decision = decide(&policy, role, name, arguments);
        assert_eq!(
            (policy_decision.action, policy_decision.rule.as_str()),
            (action, rule),
            "{name}"
        );
    };
    check(
        Role::Member,
        "bash",
        json!({"cmd": "ls -la"}),
        PolicyAction::Allow,
        "rule 1",
    );
    check(
        Role::Member,
        "bash",
        json!({"cmd": "rm x"}),
        PolicyAction::Ask,
        "rule 2",
    );
    check(
        Role::Owner,
        "bash",
        json!({"cmd": "ls"}),
        PolicyAction::Ask,
        "rule 2",
    );
    check(
        Role::Owner,
        "fs.read",
        json!({}),
        PolicyAction::Deny,
        "rule 3",
    );
    check(
        Role::Member,
        "fs.read",
        json!({}),
        PolicyAction::Allow,
        "members may use read-only tools",
    );
    let policy_decision = decide(&policy, Role::Owner, "bash", json!({}));
    assert_eq!(
        policy_decision.reason.as_deref(),
        Some("shell commands are reviewed")
    );
    assert_eq!(
        policy_decision.origin.to_string(),
        "environment variable BUB_POLICY_RULES"
    );
    let elsewhere = Sender {
        channel: "other-chat".to_owned(),
        ..sender_with_role(Role::Owner)
    };
    assert_eq!(
        policy.evaluate(&elsewhere, &tool("help"), &Map::new()).rule,
        "rule 4"
    );
}

#[test]
fn another_spelling_of_a_tool_is_the_same_tool() {
    for pattern in ["fs.read", "fs_read", "FS.Read", "fs*", "*.read"] {
        let policy = policy(&json!([{"tools": [pattern], "action": "deny"}]));
        for name in ["fs.read", "fs_read", "Fs.Read"] {
            assert_eq!(
                decide(&policy, Role::Owner, name, json!({})).action,
                PolicyAction::Deny,
                "{pattern} {name}"
            );
        }
        assert_eq!(
            decide(&policy, Role::Owner, "xfs.reader", json!({})).action,
            PolicyAction::Allow,
            "{pattern}"
        );
    }
}

// A pattern that allows commands allows no other commands.
#[test]
fn an_allowed_command_cannot_bring_another() {
    let policy = policy(&json!([
        {"roles": ["member"], "tools": ["bash"], "arguments": {"cmd": "git log*"}, "action": "allow"},
        {"roles": ["member"], "tools": ["bash"], "arguments": {"cmd": "make && ls ?"}, "action": "allow"},
    ]));
    let action = |cmd: Value| decide(&policy, Role::Member, "bash", json!({"cmd": cmd})).action;
    for cmd in [
        "git log",
        "git log --oneline -5",
        "git log --format=%h,%s src/a_b.rs",
        "make && ls x",
    ] {
        assert_eq!(action(json!(cmd)), PolicyAction::Allow, "{cmd}");
    }
    for cmd in [
        "git log; rm x",
        "git log && rm x",
        "git log | sh",
        "git log\nrm x",
        "git log\rrm x",
        "git log $(rm x)",
        "git log `rm x`",
        "git log > x",
        "git log < x",
        "git log & rm x",
        "git log ${x}",
        "git log 'x'",
        "git log \\x",
        "git log #",
        "git log !x",
        "git log {a,b}",
        "git log ~",
        "git log *",
        "git log\tx",
        "git log\0",
        "git log ../x",
        " git log",
        "git logs; x",
        "make && ls ;",
        "make && ls x; y",
        "make && ls",
        "GIT log",
        "",
    ] {
        assert_eq!(action(json!(cmd)), PolicyAction::Deny, "{cmd:?}");
    }
    for odd in [
        json!(["git log"]),
        json!({"x": "git log"}),
        json!(null),
        json!(5),
    ] {
        assert_eq!(action(odd.clone()), PolicyAction::Deny, "{odd}");
    }
    assert_eq!(
        decide(&policy, Role::Member, "bash", json!({})).action,
        PolicyAction::Deny
    );
    assert_eq!(
        decide(&policy, Role::Member, "bash", json!({"CMD": "git log"})).action,
        PolicyAction::Deny
    );
}

#[test]
fn an_allowed_path_cannot_climb_out() {
    let rule = json!([{"roles": ["member"], "tools": ["fs.write"], "arguments": {"path": "notes/*"}, "action": "allow"}]);
    let policy = policy(&rule);
    let action = |path: &str| {
        decide(
            &policy,
            Role::Member,
            "fs.write",
            json!({"path": path, "content": "x"}),
        )
        .action
    };
    assert_eq!(action("notes/a/b.md"), PolicyAction::Allow);
    for path in ["notes/../x", "notes/..", "/notes/x", "./notes/x"] {
        assert_eq!(action(path), PolicyAction::Deny, "{path}");
    }
}

// A rule that restricts matches any part of an argument.
#[test]
fn a_forbidden_argument_is_found_wherever_it_hides() {
    let policy =
        policy(&json!([{"tools": ["*"], "arguments": {"cmd": "*rm -rf*"}, "action": "deny"}]));
    let action = |cmd: Value| decide(&policy, Role::Owner, "bash", json!({"cmd": cmd})).action;
    for cmd in [
        json!("rm -rf /"),
        json!("ls;\nrm -rf x"),
        json!(["rm -rf x"]),
        json!({"a": [{"b": "rm -rf"}]}),
    ] {
        assert_eq!(action(cmd.clone()), PolicyAction::Deny, "{cmd}");
    }
    assert_eq!(action(json!("ls")), PolicyAction::Allow);
}

// L7: an invalid policy denies every call.
#[test]
fn a_policy_with_a_mistake_allows_nothing_and_says_what_it_is() {
    for (rules, problem) in [
        (
            json!([{"tools": ["bash"]}]),
            "`action` must be one of allow, ask, deny",
        ),
        (
            json!([{"action": "allow"}, {"action": "Allow"}]),
            "rule 2: `action` must be one of",
        ),
        (
            json!([{"action": "deny", "tool": "bash"}]),
            "unknown key `tool`; valid keys: roles, channels, tools",
        ),
        (
            json!([{"action": "deny", "roles": ["admin"]}]),
            "unknown role `admin`; available roles: owner, member, guest",
        ),
        (
            json!([{"action": "deny", "roles": []}]),
            "`roles` must be a non-empty list of strings",
        ),
        (
            json!([{"action": "deny", "tools": [""]}]),
            "`tools` must be",
        ),
        (
            json!([{"action": "deny", "tools": {"a": "b"}}]),
            "`tools` must be",
        ),
        (
            json!([{"action": "deny", "arguments": "x"}]),
            "`arguments` must be a map of name to pattern",
        ),
        (
            json!([{"action": "deny", "arguments": {"x": ["y"]}}]),
            "the pattern of argument `x` must be a string or null",
        ),
        (
            json!([{"action": "allow", "approvers": ["owner"]}]),
            "`approvers` requires `action: ask`",
        ),
        (
            json!([{"action": "ask", "approvers": ["guest"]}]),
            "`approvers` must not contain guest",
        ),
        (
            json!([{"action": "deny", "reason": ["y"]}]),
            "`reason` must be a string",
        ),
    ] {
        let policy = policy(&rules);
        let reason = policy
            .invalid_reason()
            .unwrap_or_else(|| panic!("{rules} is fine?"));
        assert!(
            reason.starts_with("environment variable BUB_POLICY_RULES: rule ")
                && reason.contains(problem),
            "{reason}"
        );
        let policy_decision = policy.evaluate(&Sender::terminal(), &tool("help"), &Map::new());
        assert_eq!(policy_decision.action, PolicyAction::Deny, "{rules}");
        let message = policy_decision.denial_error("help").message().to_owned();
        assert_eq!(
            message,
            "Tool 'help' denied by policy: the policy is invalid, so every call is denied; run `bub policy list` to see why"
        );
    }
    let policy = Policy::new(&settings(&[("BUB_OWNERS", "ada")]));
    assert_eq!(
        policy.invalid_reason(),
        Some("invalid entry `ada` in `owners`: expected `channel:id`")
    );
}

#[test]
fn owners_are_known_by_channel_and_id() {
    let policy = Policy::new(&settings(&[("BUB_OWNERS", "chat:ada, mail:bob@x:25")]));
    assert_eq!(policy.invalid_reason(), None);
    assert_eq!(policy.resolve_role("chat", "ada", false), Role::Owner);
    assert_eq!(policy.resolve_role("mail", "bob@x:25", false), Role::Owner);
    for (channel, id) in [
        ("mail", "ada"),
        ("chat", "Ada"),
        ("chat", ""),
        ("", "chat:ada"),
        ("chat", "ad"),
    ] {
        assert_eq!(
            policy.resolve_role(channel, id, false),
            Role::Guest,
            "{channel} {id}"
        );
        assert_eq!(
            policy.resolve_role(channel, id, true),
            Role::Member,
            "{channel} {id}"
        );
    }
}

// W-37
#[test]
fn members_stay_in_the_workspace_and_owners_when_the_setting_says_so() {
    let confines = |pairs: &[(&str, &str)], role| {
        FileAccess::new(&Arc::new(settings(pairs))).is_confined(&sender_with_role(role))
    };
    assert!(!confines(&[], Role::Owner));
    assert!(confines(&[], Role::Member) && confines(&[], Role::Guest));
    assert!(confines(&[("BUB_FS_CONFINE", "yes")], Role::Owner));
    let files = FileAccess::new(&Arc::new(settings(&[])));
    let unknown = Inbound::from(Envelope::from_text("hi"));
    assert!(
        files.is_confined(&unknown.sender()),
        "an unauthenticated sender is not trusted"
    );
    assert!(!files.is_confined(&Sender::terminal()));
}

// A rule that asks everyone let members use the shell.
#[test]
fn a_rule_that_asks_does_not_loosen_a_default_deny_unless_it_names_the_role() {
    let for_all = policy(&json!([{"tools": ["bash", "help"], "action": "ask"}]));
    for (role, tool, action) in [
        (Role::Owner, "bash", PolicyAction::Ask),
        (Role::Member, "bash", PolicyAction::Deny),
        (Role::Guest, "bash", PolicyAction::Deny),
        (Role::Member, "help", PolicyAction::Ask),
        (Role::Guest, "help", PolicyAction::Deny),
    ] {
        let decision = decide(&for_all, role, tool, json!({}));
        assert_eq!(decision.action, action, "{role:?} {tool}");
    }
    assert_eq!(
        decide(&for_all, Role::Member, "bash", json!({})).rule,
        "members may use only read-only tools; rule 1 does not name the role member"
    );
    // A later rule does not allow what this rule restricts.
    let shadowed = policy(&json!([
        {"tools": "bash", "action": "ask"},
        {"tools": "bash", "action": "allow"},
    ]));
    let decision = decide(&shadowed, Role::Member, "bash", json!({}));
    assert_eq!(decision.action, PolicyAction::Deny);
    let named = policy(&json!([{"roles": ["member"], "tools": ["bash"], "action": "ask"}]));
    let decision = decide(&named, Role::Member, "bash", json!({}));
    assert_eq!(decision.action, PolicyAction::Ask);
    assert_eq!(decision.approvers, [Role::Owner]);
    assert_eq!(
        named.rules()[0].summary(),
        "ask: bash, member, approved by owner"
    );
}

// `bub doctor` reports these rules.
#[test]
fn dangerous_rules_are_recognized() {
    for (rule, risk) in [
        (
            json!({"action": "allow"}),
            Some("lets every guest use every tool"),
        ),
        (
            json!({"action": "allow", "tools": "*"}),
            Some("lets every guest use every tool"),
        ),
        (
            json!({"action": "allow", "roles": ["member"], "tools": ["bash"]}),
            Some("lets every member use `bash` with any arguments"),
        ),
        (
            json!({"action": "allow", "roles": ["member"], "tools": ["b*"], "arguments": {"cmd": "*"}}),
            Some("lets every member use `bash` with any arguments"),
        ),
        (
            json!({"action": "allow", "roles": ["member"], "tools": ["fs_*"]}),
            Some("lets every member use `fs.write` with any arguments"),
        ),
        (
            json!({"action": "ask", "roles": ["member"], "tools": ["bash"], "approvers": ["member"]}),
            Some("lets members approve `bash` for a member"),
        ),
        (json!({"action": "allow", "roles": ["owner"]}), None),
        (json!({"action": "deny"}), None),
        (json!({"action": "ask"}), None),
        (
            json!({"action": "allow", "roles": ["member"], "tools": ["web.fetch"]}),
            None,
        ),
        (
            json!({"action": "allow", "roles": ["member"], "tools": ["bash"], "arguments": {"cmd": "git log*"}}),
            None,
        ),
    ] {
        let policy = policy(&json!([rule]));
        assert_eq!(policy.rules()[0].risk().as_deref(), risk, "{rule}");
    }
}

#[test]
fn an_argument_with_null_must_be_absent() {
    let policy = policy(&json!([
        {"roles": ["member"], "tools": ["bash"], "arguments": {"cmd": "make", "cwd": null}, "action": "allow"},
    ]));
    for (arguments, action) in [
        (json!({"cmd": "make"}), PolicyAction::Allow),
        (json!({"cmd": "make", "cwd": null}), PolicyAction::Allow),
        (json!({"cmd": "make", "cwd": "/"}), PolicyAction::Deny),
        (json!({"cwd": null}), PolicyAction::Deny),
    ] {
        let decision = decide(&policy, Role::Member, "bash", arguments.clone());
        assert_eq!(decision.action, action, "{arguments}");
    }
}
