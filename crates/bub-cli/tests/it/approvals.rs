//! Tests approvals of tool calls that are asked for and answered in the chat.

use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    gateway_client::{CallbackServer, GatewayClient, start_gateway_with},
    sandbox::{Run, Sandbox, bub},
};

const RULES: (&str, &str) = (
    "BUB_POLICY_RULES",
    r#"[{"roles": ["owner", "member", "guest"], "tools": ["bash"], "action": "ask", "reason": "ask first"}]"#,
);

struct ApprovalFixture {
    sandbox: Sandbox,
    model: ModelServer,
    gateway: GatewayClient,
    callbacks: CallbackServer,
    callback: String,
}

impl ApprovalFixture {
    fn open(settings: &[(&str, &str)]) -> Self {
        let (sandbox, model) = (Sandbox::new(), ModelServer::start());
        let fixed = [RULES, ("BUB_WEBHOOK_ROLE", "owner")];
        let settings: Vec<_> = fixed.iter().chain(settings).copied().collect();
        let gateway = start_gateway_with(&sandbox, &model, &[], &settings);
        let callbacks = CallbackServer::default();
        let callback = callbacks.listen(|| 200);
        Self {
            sandbox,
            model,
            gateway,
            callbacks,
            callback,
        }
    }

    /// Makes the model call the shell for alice. Returns the id of her message and the id of the approval request.
    fn start_call(&self) -> (String, String) {
        self.model
            .script(Reply::new().call("call", "bash", r#"{"command": "echo done >> log"}"#));
        let posted = self.gateway.ask(&json!({
            "content": "do it", "chat_id": "lab", "sender_id": "alice", "reply": "callback", "callback_url": self.callback,
        }));
        let id = posted["id"].as_str().unwrap().to_owned();
        let question = self.callbacks.reply(&id, 0);
        assert!(
            question.starts_with("ask first\nallow bash(command=\"echo done >> log\")?"),
            "{question}"
        );
        let asked = question
            .split("approve ")
            .nth(1)
            .unwrap()
            .split('`')
            .next()
            .unwrap();
        (id, asked.to_owned())
    }

    fn send(&self, sender: &str, chat: &str, text: &str) -> String {
        let answer = self
            .gateway
            .ask(&json!({"content": text, "chat_id": chat, "sender_id": sender}));
        answer["reply"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    }

    fn has_run(&self) -> bool {
        self.sandbox.workspace().join("log").exists()
    }

    /// Returns the tool result that the model received.
    fn result(&self) -> Value {
        let request = self.model.requests().last().unwrap().json();
        let messages = request["messages"].as_array().unwrap();
        messages
            .iter()
            .rfind(|message| message["role"] == "tool")
            .unwrap()["content"]
            .clone()
    }
}

// P-11: with another prefix, the question names it, and a comma answers nothing.
#[test]
fn an_approval_uses_the_prefix_of_commands() {
    let chat = ApprovalFixture::open(&[("BUB_COMMAND_PREFIX", "!")]);
    let (id, asked) = chat.start_call();
    assert!(chat.callbacks.reply(&id, 0).contains("Answer `!approve "));
    chat.model.otherwise(Reply::text("it is done"));
    let denied = chat.send("alice", "lab", "!approve nothing");
    assert_eq!(
        denied,
        "approval request not found: it was already answered or has expired"
    );
    assert!(!chat.has_run());
    let approved = chat.send("alice", "lab", &format!(" ! approve {asked}"));
    assert_eq!(approved, "Approved.");
    assert_eq!(chat.callbacks.reply(&id, 1), "it is done");
    assert!(chat.has_run());
}

// Approvals are asked for and answered in the channel immediately, although the turn occupies the lane.
#[test]
fn an_owner_can_approve_in_the_chat_that_was_asked() {
    let chat = ApprovalFixture::open(&[]);
    let (id, asked) = chat.start_call();
    chat.model.script(Reply::text("it is done"));
    let refusals = [
        (
            "alice",
            "elsewhere",
            &asked,
            "approval request belongs to another chat: answer it there",
        ),
        (
            "alice",
            "lab",
            &"0123456789abcdef".to_owned(),
            "approval request not found: it was already answered or has expired",
        ),
        (
            "alice",
            "lab",
            &format!("{asked} always"),
            "this request can be approved only once",
        ),
        (
            "alice",
            "lab",
            &format!("{asked} please"),
            "Specify the request: `,approve ID [session|always]`, with the id from the question.",
        ),
    ];
    for (sender, chat_id, asked, refusal) in refusals {
        assert_eq!(
            chat.send(sender, chat_id, &format!(",approve {asked}")),
            refusal,
            "{sender} in {chat_id}"
        );
    }
    assert!(!chat.has_run());
    assert_eq!(
        chat.send("alice", "lab", &format!(",approve {asked}")),
        "Approved."
    );
    assert_eq!(chat.callbacks.reply(&id, 1), "it is done");
    assert!(chat.has_run());
    // A request can be answered only once.
    let again = chat.send("alice", "lab", &format!(",deny {asked}"));
    assert_eq!(
        again,
        "approval request not found: it was already answered or has expired"
    );
    chat.gateway.stop();
}

#[test]
fn a_denial_reaches_the_model_with_its_reason() {
    let chat = ApprovalFixture::open(&[]);
    let (id, asked) = chat.start_call();
    chat.model.script(Reply::text("then not"));
    assert_eq!(
        chat.send("alice", "lab", &format!(",deny {asked} not on a Friday")),
        "Denied."
    );
    assert_eq!(chat.callbacks.reply(&id, 1), "then not");
    assert!(
        chat.result().as_str().unwrap().contains("not on a Friday"),
        "{}",
        chat.result()
    );
    assert!(!chat.has_run());
    chat.gateway.stop();
}

// Members and guests approved their own calls.
#[test]
fn a_call_that_no_one_in_the_chat_may_approve_is_denied_with_the_reason() {
    for role in ["member", "guest"] {
        let chat = ApprovalFixture::open(&[("BUB_WEBHOOK_ROLE", role)]);
        chat.model
            .script(Reply::new().call("call", "bash", r#"{"command": "echo done >> log"}"#))
            .script(Reply::text("not approved"));
        assert_eq!(chat.send("alice", "lab", "do it"), "not approved");
        let result = chat.result().to_string();
        let reason = "no owner who may approve the call can answer in this chat";
        assert!(result.contains(reason), "{result}");
        assert!(!chat.has_run());
        chat.gateway.stop();
    }
}

// The model learns why the call needs approval, and why no one was asked.
#[test]
fn a_denial_without_a_terminal_has_both_reasons() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model
        .script(Reply::new().call("call", "bash", r#"{"cmd": "echo done >> log"}"#))
        .script(Reply::text("not approved"));
    // Without a terminal, also if the tests have one.
    let mut command = sandbox.command(std::path::Path::new("setsid"));
    command.arg("--wait").arg(bub()).args(["run", "do it"]);
    let settings = [RULES, ("BUB_MODEL", "openai:small"), ("BUB_API_KEY", "k")];
    command
        .envs(settings)
        .env("BUB_API_BASE", format!("{}/v1", model.url()));
    let run = Run::from_output(command.output().unwrap()).ok();
    assert!(run.contains("not approved"), "{run}");
    let request = model.requests().last().unwrap().json();
    let result = request["messages"].as_array().unwrap().last().unwrap()["content"].to_string();
    let expected = "Tool 'bash' denied by policy: cannot ask for approval (ask first): the process has no terminal; \
                    run the command in a terminal";
    assert!(result.contains(expected), "{result}");
}

#[test]
fn silence_is_a_no() {
    let chat = ApprovalFixture::open(&[("BUB_POLICY_APPROVAL_TIMEOUT_SECONDS", "1")]);
    let (id, _) = chat.start_call();
    chat.model.script(Reply::text("no approval"));
    assert_eq!(chat.callbacks.reply(&id, 1), "no approval");
    assert!(!chat.has_run());
    chat.gateway.stop();
}

// The answer `session` is remembered for the same call.
#[test]
fn a_call_approved_for_the_session_is_not_asked_about_again() {
    let chat = ApprovalFixture::open(&[]);
    let (id, asked) = chat.start_call();
    chat.model.script(Reply::text("it is done"));
    assert_eq!(
        chat.send("alice", "lab", &format!(",approve {asked} session")),
        "Approved for this session."
    );
    assert_eq!(chat.callbacks.reply(&id, 1), "it is done");
    chat.model
        .script(Reply::new().call("again", "bash", r#"{"command": "echo done >> log"}"#))
        .script(Reply::text("again"));
    assert_eq!(chat.send("alice", "lab", "once more"), "again");
    let log = std::fs::read_to_string(chat.sandbox.workspace().join("log")).unwrap();
    assert_eq!(log, "done\ndone\n");
    chat.gateway.stop();
}

// The content of a webhook does not use the shell of an owner, without any rule.
#[test]
fn a_webhook_with_the_role_owner_gets_no_shell_by_default() {
    let chat = ApprovalFixture::open(&[("BUB_POLICY_RULES", "[]")]);
    chat.model
        .script(Reply::new().call("call", "bash", r#"{"command": "echo done >> log"}"#))
        .script(Reply::text("denied"));
    assert_eq!(chat.send("alice", "lab", "do it"), "denied");
    let result = chat.result().to_string();
    assert!(
        result.contains("no owner who may approve the call"),
        "{result}"
    );
    assert!(!chat.has_run());
    chat.gateway.stop();
}

#[test]
fn a_stream_shows_the_question_in_time() {
    use std::io::Read as _;
    let chat = ApprovalFixture::open(&[]);
    chat.model
        .script(Reply::new().call("call", "bash", r#"{"command": "true"}"#))
        .script(Reply::text("fine"));
    let body = json!({"content": "do it", "sender_id": "alice", "reply": "stream"}).to_string();
    let mut stream = chat.gateway.begin(&body);
    let mut seen = String::new();
    let asked = loop {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        if let Some(rest) = seen
            .split("approve ")
            .nth(1)
            .filter(|rest| rest.contains('`'))
        {
            break rest.split('`').next().unwrap().to_owned();
        }
    };
    assert!(seen.contains("event: approval\n"), "{seen}");
    assert_eq!(
        chat.send("alice", "default", &format!(",approve {asked}")),
        "Approved."
    );
    stream.read_to_string(&mut seen).unwrap();
    assert!(
        seen.contains("event: final") && seen.contains(r#""reply":"fine""#),
        "{seen}"
    );
    chat.gateway.stop();
}
