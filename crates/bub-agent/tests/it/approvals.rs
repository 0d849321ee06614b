//! Approvals: who can give them, for which call, and for how long.

use std::{sync::Arc, sync::Mutex, time::Duration};

use bub_agent::policy::{
    self, Approval, ApprovalOutcome, ApprovalParams, Policy, PolicyAction, PolicyDecision,
};
use bub_kernel::{
    ApprovalAnswer, ApprovalRequest, Approvals, CancellationToken, ChannelMessage, ErrorKind,
    Framework, Inbound, Result, Role, Sender, State, Turn, UntrustedSource, hooks,
};
use bub_settings::SettingSource;
use serde_json::{Value, json};

use crate::policy::{map, sender_with_role, settings, tool};

/// The reaction of a user to a request. The results are kept.
type AnswerFn = Box<dyn Fn(&Approvals, &ApprovalRequest) -> Vec<Result<()>> + Send + Sync>;

/// A channel that shows requests to a user.
struct FakeChat {
    answer: AnswerFn,
    outcomes_seen: Mutex<Vec<String>>,
    shown: Mutex<Vec<ApprovalRequest>>,
}

#[hooks(crate = bub_kernel)]
impl FakeChat {
    async fn request_approval(
        &self,
        request: &ApprovalRequest,
        turn: &Turn,
    ) -> Option<ApprovalAnswer> {
        self.shown.lock().unwrap().push(request.clone());
        let approvals = turn.framework().approvals();
        let outcomes = (self.answer)(approvals, request);
        let words = outcomes
            .into_iter()
            .map(|outcome| outcome.map_or_else(|no| no.message().to_owned(), |()| "ok".to_owned()));
        self.outcomes_seen.lock().unwrap().extend(words);
        approvals.wait_for_answer(&request.id).await
    }
}

struct ApprovalFixture {
    chat: Arc<FakeChat>,
    turn: Turn,
    cancel: CancellationToken,
}

struct Shared(Arc<FakeChat>);

impl bub_kernel::Plugin for Shared {
    fn register(self: Arc<Self>, hooks: &mut bub_kernel::hooks::HookSet) {
        Arc::clone(&self.0).register(hooks);
    }
}

impl ApprovalFixture {
    fn new(
        answer: impl Fn(&Approvals, &ApprovalRequest) -> Vec<Result<()>> + Send + Sync + 'static,
    ) -> Self {
        let chat = Arc::new(FakeChat {
            answer: Box::new(answer),
            outcomes_seen: Mutex::default(),
            shown: Mutex::default(),
        });
        let framework = Framework::builder()
            .plugin("chat", Shared(Arc::clone(&chat)))
            .build();
        Self {
            chat,
            turn: turn(&framework, sender_with_role(Role::Owner)),
            cancel: CancellationToken::new(),
        }
    }

    async fn try_ask(&self, arguments: Value) -> Result<Approval> {
        let rule = json!({"roles": ["owner", "member"], "tools": ["bash"], "action": "ask", "reason": "reviewed"});
        self.ask_by_rule(rule, arguments).await
    }

    async fn ask_by_rule(&self, rule: Value, arguments: Value) -> Result<Approval> {
        let settings = settings(&[("BUB_POLICY_RULES", &json!([rule]).to_string())]);
        let secret = bub_settings::Secret::from("correct-horse-battery");
        settings.redactor().register(&secret);
        let policy = Policy::new(&settings);
        let (tool, arguments) = (tool("bash"), map(arguments));
        let policy_decision = policy.evaluate(self.turn.sender(), &tool, &arguments);
        assert_eq!(policy_decision.action, PolicyAction::Ask);
        let params = ApprovalParams {
            tool: &tool,
            arguments: &arguments,
            policy_decision: &policy_decision,
            timeout: policy.approval_timeout(),
            settings: &settings,
        };
        policy::request_approval(&self.turn, params, &self.cancel).await
    }

    /// Returns the fixture with another sender.
    fn sent_by(mut self, sender: Sender) -> Self {
        self.turn = turn(self.turn.framework(), sender);
        self
    }

    async fn ask(&self, arguments: Value) -> Approval {
        self.try_ask(arguments).await.unwrap()
    }

    fn outcomes_seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.chat.outcomes_seen.lock().unwrap())
    }
}

/// Returns a turn in the chat of the requests.
fn turn(framework: &Framework, sender: Sender) -> Turn {
    let message = Inbound::from(ChannelMessage::new("chat:7", "chat", "hi").chat_id("7"));
    Turn::detached(framework, message.with_sender(sender), State::new())
}

const YES: ApprovalAnswer = ApprovalAnswer::Approved;
const NOT_FOUND: &str = "approval request not found: it was already answered or has expired";

#[tokio::test(start_paused = true)]
async fn a_yes_of_the_person_lets_the_call_through_and_is_recorded() {
    let fixture = ApprovalFixture::new(|approvals, request| {
        vec![approvals.submit_answer(&request.id, &sender_with_role(Role::Owner), YES)]
    });
    let arguments = json!({"cmd": "curl x", "list": [{"a": "b"}]});
    let approval = fixture.ask(arguments.clone()).await;
    assert_eq!(
        approval.event_data("c1"),
        json!({"tool": "bash", "call_id": "c1", "decision": "approved", "by": "chat:ada", "elapsed_ms": 0})
    );
    approval.consume("bash", &map(arguments)).unwrap();
    assert_eq!(fixture.outcomes_seen(), ["ok"]);
    let shown = fixture.chat.shown.lock().unwrap().pop().unwrap();
    assert_eq!(shown.call_text(), r#"bash(cmd="curl x", list=[{"a":"b"}])"#);
    assert_eq!(
        (shown.reason.as_str(), shown.session_id.as_str()),
        ("reviewed", "chat:7")
    );
    assert_eq!(
        (shown.sender, shown.expires),
        (sender_with_role(Role::Owner), Duration::from_mins(5))
    );
}

#[tokio::test(start_paused = true)]
async fn a_no_is_a_no_with_its_reason() {
    for (reason, expected) in [
        (
            Some("not today".to_owned()),
            "Tool 'bash' denied by the user: not today",
        ),
        (None, "Tool 'bash' denied by the user"),
    ] {
        let no = ApprovalAnswer::Denied(reason);
        let fixture = ApprovalFixture::new(move |approvals, request| {
            vec![approvals.submit_answer(&request.id, &sender_with_role(Role::Owner), no.clone())]
        });
        let approval = fixture.ask(json!({})).await;
        assert_eq!(approval.decision, ApprovalOutcome::Denied);
        let error = approval.consume("bash", &map(json!({}))).unwrap_err();
        assert_eq!(error.message(), expected);
        assert_eq!(error.kind(), ErrorKind::Tool);
    }
}

#[tokio::test(start_paused = true)]
async fn no_one_else_and_from_nowhere_else_can_answer() {
    let strangers = || {
        let ada = sender_with_role(Role::Member);
        let other_chat = "approval request belongs to another chat: answer it there";
        let other_user = "you may not answer this request: it needs the role owner";
        vec![
            (
                Sender {
                    id: "eve".to_owned(),
                    ..ada.clone()
                },
                other_user,
            ),
            (
                Sender {
                    id: String::new(),
                    ..ada.clone()
                },
                other_user,
            ),
            (
                Sender {
                    role: Role::Guest,
                    ..ada.clone()
                },
                other_user,
            ),
            (
                Sender {
                    id: "eve".to_owned(),
                    role: Role::Guest,
                    ..ada.clone()
                },
                other_user,
            ),
            (
                Sender {
                    chat_id: "8".to_owned(),
                    ..ada.clone()
                },
                other_chat,
            ),
            (
                Sender {
                    channel: "mail".to_owned(),
                    ..ada.clone()
                },
                other_chat,
            ),
            (
                Sender {
                    chat_id: "8".to_owned(),
                    role: Role::Owner,
                    ..ada.clone()
                },
                other_chat,
            ),
            (Sender::default(), other_chat),
        ]
    };
    let fixture = ApprovalFixture::new(move |approvals, request| {
        strangers()
            .into_iter()
            .map(|(sender, _)| approvals.submit_answer(&request.id, &sender, YES))
            .collect()
    });
    let approval = fixture.ask(json!({"cmd": "rm x"})).await;
    let expected: Vec<_> = strangers().into_iter().map(|(_, cause)| cause).collect();
    assert_eq!(fixture.outcomes_seen(), expected);
    // All answers were rejected, so the request expired.
    assert_eq!(approval.decision, ApprovalOutcome::Expired);
    assert_eq!(approval.event_data("c")["by"], Value::Null);
    let message = approval
        .consume("bash", &map(json!({"cmd": "rm x"})))
        .unwrap_err()
        .message()
        .to_owned();
    assert_eq!(
        message,
        "Tool 'bash' denied by policy: not approved within 300 s (reviewed)"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_once_and_for_one_request() {
    let ids = Arc::new(Mutex::new(Vec::<String>::new()));
    let seen = Arc::clone(&ids);
    let fixture = ApprovalFixture::new(move |approvals, request| {
        let ada = sender_with_role(Role::Owner);
        let mut ids = seen.lock().unwrap();
        // Replays the answers to all earlier requests. For the first request, also sends a valid answer twice.
        let mut outcomes: Vec<_> = ids
            .iter()
            .map(|id| approvals.submit_answer(id, &ada, YES))
            .collect();
        if ids.is_empty() {
            outcomes.extend([
                approvals.submit_answer(&request.id, &ada, YES),
                approvals.submit_answer(&request.id, &ada, YES),
            ]);
        }
        ids.push(request.id.clone());
        outcomes
    });
    let first = fixture.ask(json!({"cmd": "ls"})).await;
    assert_eq!(
        (first.decision, fixture.outcomes_seen()),
        (
            ApprovalOutcome::Approved,
            vec!["ok".to_owned(), NOT_FOUND.to_owned()]
        )
    );
    let second = fixture.ask(json!({"cmd": "ls"})).await;
    assert_eq!(
        (second.decision, fixture.outcomes_seen()),
        (ApprovalOutcome::Expired, vec![NOT_FOUND.to_owned()])
    );
    let ids = ids.lock().unwrap().clone();
    assert_ne!(ids[0], ids[1]);
    for id in ids.iter().map(String::as_str).chain(["", "x"]) {
        let approvals = fixture.turn.framework().approvals();
        let late = approvals.submit_answer(id, &sender_with_role(Role::Owner), YES);
        assert_eq!(late.unwrap_err().message().to_owned(), NOT_FOUND);
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_for_the_call_as_it_was_shown() {
    let yes = || {
        ApprovalFixture::new(|approvals, request| {
            vec![approvals.submit_answer(&request.id, &sender_with_role(Role::Owner), YES)]
        })
    };
    for (name, arguments) in [
        ("bash", json!({"cmd": "rm -rf x"})),
        ("bash", json!({})),
        ("fs.write", json!({"cmd": "ls"})),
    ] {
        let approval = yes().ask(json!({"cmd": "ls"})).await;
        let message = approval
            .consume(name, &map(arguments))
            .unwrap_err()
            .message()
            .to_owned();
        assert!(
            message
                .ends_with("denied by policy: the approval is for another call; request a new one"),
            "{message}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn when_no_user_can_be_asked_or_asking_fails_the_answer_is_no() {
    struct FailingApprover;
    #[hooks(crate = bub_kernel)]
    impl FailingApprover {
        async fn request_approval(&self) -> Result<Option<ApprovalAnswer>> {
            Err(bub_kernel::Error::unknown("the line is dead"))
        }
    }
    for (builder, expected) in [
        (
            Framework::builder(),
            "neither the channel nor a plugin can ask a user; use `bub chat`, or change `policy.rules`",
        ),
        (
            Framework::builder().plugin("broken", FailingApprover),
            "the line is dead",
        ),
    ] {
        let fixture = ApprovalFixture {
            turn: turn(&builder.build(), sender_with_role(Role::Owner)),
            ..ApprovalFixture::new(|_, _| Vec::new())
        };
        let approval = fixture.ask(json!({})).await;
        assert_eq!(approval.decision, ApprovalOutcome::Failed);
        let error = approval
            .consume("bash", &map(json!({})))
            .unwrap_err()
            .message()
            .to_owned();
        assert_eq!(
            error,
            format!("Tool 'bash' denied by policy: cannot ask for approval (reviewed): {expected}")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_turn_does_not_wait_for_an_answer() {
    let fixture = ApprovalFixture::new(|_, _| Vec::new());
    fixture.cancel.cancel();
    assert_eq!(
        fixture.try_ask(json!({})).await.unwrap_err().kind(),
        ErrorKind::Cancelled
    );
}

// A user may take longer than the timeout of other hooks.
#[tokio::test(start_paused = true)]
async fn the_time_limit_of_hooks_does_not_cut_a_person_short() {
    struct SlowApprover;
    #[hooks(crate = bub_kernel)]
    impl SlowApprover {
        async fn request_approval(&self) -> ApprovalAnswer {
            tokio::time::sleep(bub_kernel::hooks::HOOK_TIMEOUT * 3).await;
            ApprovalAnswer::Approved
        }
    }
    let framework = Framework::builder().plugin("slow", SlowApprover).build();
    let (tool, arguments, settings) = (tool("bash"), map(json!({})), settings(&[]));
    let policy_decision = Policy::new(&settings).evaluate(&Sender::terminal(), &tool, &arguments);
    let params = ApprovalParams {
        tool: &tool,
        arguments: &arguments,
        policy_decision: &policy_decision,
        timeout: Duration::from_hours(1),
        settings: &settings,
    };
    let turn = turn(&framework, Sender::terminal());
    let approval = policy::request_approval(&turn, params, &CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(
        (approval.decision, approval.by.as_deref()),
        (ApprovalOutcome::Approved, Some("plugin"))
    );
}

fn member(id: &str) -> Sender {
    Sender {
        id: id.to_owned(),
        ..sender_with_role(Role::Member)
    }
}

fn owner(id: &str) -> Sender {
    Sender {
        id: id.to_owned(),
        ..sender_with_role(Role::Owner)
    }
}

fn ask_member_rule(approvers: &[&str]) -> Value {
    json!({"roles": ["member"], "tools": ["bash"], "action": "ask", "approvers": approvers})
}

// A member approved their own shell.
#[tokio::test(start_paused = true)]
async fn a_member_never_approves_what_members_may_not_do() {
    const OWN: &str = "you may not answer your own request: another user must approve it";
    const ROLE: &str = "you may not answer this request: it needs the role owner";
    for (approvers, by, expected) in [
        (&["owner"][..], member("ada"), ROLE),
        (&["owner"], member("eve"), ROLE),
        (&["owner"], sender_with_role(Role::Guest), ROLE),
        (&["owner", "member"], member("ada"), OWN),
        // A sender without an id could be the asker.
        (&["owner", "member"], member(""), OWN),
        (&["owner", "member"], member("eve"), "ok"),
        (&["owner"], owner("root"), "ok"),
        // `approvers` names who may answer beside the owners.
        (&["member"], owner("root"), "ok"),
        (&["member"], member("eve"), "ok"),
    ] {
        let fixture = ApprovalFixture::new(move |approvals, request| {
            vec![approvals.submit_answer(&request.id, &by, YES)]
        });
        let fixture = fixture.sent_by(member("ada"));
        let rule = ask_member_rule(approvers);
        let approval = fixture.ask_by_rule(rule, json!({"cmd": "id"})).await;
        let decision = approval.unwrap().decision;
        assert_eq!(fixture.outcomes_seen(), [expected]);
        assert_eq!(decision == ApprovalOutcome::Approved, expected == "ok");
    }
}

// A program that calls a webhook cannot vouch for what it sends. The owner at the terminal can.
#[tokio::test(start_paused = true)]
async fn the_owner_at_the_terminal_accepts_the_content_of_a_webhook() {
    let own = "you may not answer your own request: another user must approve it";
    for (sender, expected) in [(owner("ci"), own), (Sender::terminal(), "ok")] {
        let fixture = ApprovalFixture::new(|approvals, request| {
            vec![approvals.submit_answer(&request.id, &request.sender, YES)]
        });
        let fixture = fixture.sent_by(sender);
        fixture.turn.mark_untrusted(UntrustedSource::Webhook);
        let decision = PolicyDecision {
            action: PolicyAction::Ask,
            rule: "the conversation contains the content of a webhook".to_owned(),
            origin: SettingSource::Default,
            reason: None,
            approvers: vec![Role::Owner],
            accepts_content: true,
        };
        let (settings, arguments) = (settings(&[]), map(json!({"cmd": "id"})));
        let params = ApprovalParams {
            tool: &tool("bash"),
            arguments: &arguments,
            policy_decision: &decision,
            timeout: Duration::from_secs(1),
            settings: &settings,
        };
        let approval = policy::request_approval(&fixture.turn, params, &fixture.cancel).await;
        let is_approved = approval.unwrap().decision == ApprovalOutcome::Approved;
        assert_eq!(fixture.outcomes_seen(), [expected]);
        assert_eq!(is_approved, expected == "ok");
    }
}

// Only an owner adds rules, and only where a rule can be written.
#[tokio::test(start_paused = true)]
async fn only_an_owner_approves_for_always() {
    const ONLY_OWNER: &str = "only an owner may approve a call for always: approve it once";
    const ONCE: &str = "this request can be approved only once";
    for (by, answer, expected) in [
        (member("eve"), ApprovalAnswer::ApprovedAlways, ONLY_OWNER),
        (member("eve"), ApprovalAnswer::ApprovedForSession, "ok"),
        // The rules of this policy are in the environment, which bub cannot change.
        (owner("root"), ApprovalAnswer::ApprovedAlways, ONCE),
    ] {
        let fixture = ApprovalFixture::new(move |approvals, request| {
            vec![approvals.submit_answer(&request.id, &by, answer.clone())]
        });
        let fixture = fixture.sent_by(member("ada"));
        let rule = ask_member_rule(&["owner", "member"]);
        let _approval = fixture.ask_by_rule(rule, json!({"cmd": "id"})).await;
        assert_eq!(fixture.outcomes_seen(), [expected]);
    }
}

// A question that shows a part of the call is no question.
#[tokio::test(start_paused = true)]
async fn a_call_with_a_secret_is_refused_in_a_chat_and_shown_at_the_terminal() {
    let yes = |approvals: &Approvals, request: &ApprovalRequest| {
        vec![approvals.submit_answer(&request.id, &request.sender, YES)]
    };
    for arguments in [
        json!({"cmd": "curl -H correct-horse-battery x"}),
        json!({"list": [{"a": "correct-horse-battery"}]}),
        json!({"correct-horse-battery": "x"}),
    ] {
        let fixture = ApprovalFixture::new(yes);
        let approval = fixture.ask(arguments.clone()).await;
        assert_eq!(approval.decision, ApprovalOutcome::Failed, "{arguments}");
        assert!(fixture.chat.shown.lock().unwrap().is_empty(), "{arguments}");
        let error = approval.consume("bash", &map(arguments)).unwrap_err();
        assert!(error.message().contains("contains a secret"), "{error}");
    }
    let fixture = ApprovalFixture::new(yes).sent_by(Sender::terminal());
    let approval = fixture
        .ask(json!({"cmd": "login correct-horse-battery"}))
        .await;
    assert_eq!(approval.decision, ApprovalOutcome::Approved);
    let shown = fixture.chat.shown.lock().unwrap().pop().unwrap();
    assert!(shown.call_text().contains("correct-horse-battery"));
    // Plugins get the redacted arguments.
    assert_eq!(shown.arguments["cmd"], "login ***");
}

// Chats show a question as text and may split it into several messages.
#[tokio::test(start_paused = true)]
async fn empty_lines_do_not_move_a_call_out_of_sight_in_a_chat() {
    let question = async |command: String| {
        let fixture = ApprovalFixture::new(|approvals, request| {
            vec![approvals.submit_answer(&request.id, &request.sender, YES)]
        });
        fixture.ask(json!({"cmd": command})).await;
        let shown = fixture.chat.shown.lock().unwrap().pop().unwrap();
        shown.question_text()
    };
    for empty in ["\n", " \n", "\t\n"] {
        let hidden = format!("touch pwned\n{}ls", empty.repeat(6000));
        let text = question(hidden).await;
        let shown = r#"allow bash(cmd="touch pwned\n⟨6000 empty lines⟩\nls")?"#;
        assert!(text.contains(shown), "{text}");
    }
    // Bash takes these lines for the names of programs.
    for space in ["\u{a0}", "\u{3000}", "\u{2028}", "\u{85}", "\u{b}", "\r"] {
        let text = question(format!("ls\n\n{space}\n\n\nls")).await;
        assert!(!text.contains("4 empty lines"), "{text}");
    }
    let long = format!("touch pwned; {}; ls", "echo a; ".repeat(1000));
    let text = question(long).await;
    let end: Vec<_> = text.lines().rev().take(2).collect();
    assert!(end[1].contains("touch pwned; echo a"), "{end:?}");
    assert!(end[0].ends_with("echo a; ; ls\")"), "{end:?}");
}

// A plugin that answers has not seen the secret.
#[tokio::test(start_paused = true)]
async fn a_plugin_cannot_approve_a_call_that_it_saw_in_part() {
    struct YesPlugin;
    #[hooks(crate = bub_kernel)]
    impl YesPlugin {
        fn request_approval(&self) -> ApprovalAnswer {
            ApprovalAnswer::Approved
        }
    }
    let framework = Framework::builder().plugin("yes", YesPlugin).build();
    let mut fixture = ApprovalFixture::new(|_, _| Vec::new());
    fixture.turn = turn(&framework, Sender::terminal());
    let decision = fixture.ask(json!({"cmd": "ls"})).await.decision;
    assert_eq!(decision, ApprovalOutcome::Approved);
    let approval = fixture
        .ask(json!({"cmd": "login correct-horse-battery"}))
        .await;
    assert_eq!(approval.decision, ApprovalOutcome::Failed);
}
