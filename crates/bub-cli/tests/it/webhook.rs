//! Tests `bub gateway` with its webhook from a client on the same machine.

use std::io::Read as _;

use bub_testkit::model::{ModelServer, Reply};

use crate::{gateway_client::start_gateway, sandbox::Sandbox};

#[test]
fn a_program_posts_a_message_and_gets_the_models_answer_whole_or_as_it_grows() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let gateway = start_gateway(&sandbox, &model);
    model.script(Reply::deltas(["Hel", "lo"]));
    let (status, body) = gateway.post(r#"{"content": "hi"}"#);
    assert!(
        status == "200" && body.contains(r#""reply":"Hello""#),
        "{status} {body}"
    );
    model.script(Reply::deltas(["Good", "bye"]));
    let (status, body) = gateway.post(r#"{"content": "bye", "reply": "stream"}"#);
    let places: Vec<_> = [
        r#"{"delta":"Good"}"#,
        r#"{"delta":"bye"}"#,
        r#""reply":"Goodbye""#,
    ]
    .into_iter()
    .map(|text| {
        body.find(text)
            .unwrap_or_else(|| panic!("no {text} in {body}"))
    })
    .collect();
    assert!(status == "200" && places.is_sorted(), "{body}");
    assert!(sandbox.only_tape().contains("webhook:default"));
    gateway.stop();
}

#[test]
fn a_turn_that_fails_is_an_error_for_the_client_and_not_the_end_of_the_gateway() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let gateway = start_gateway(&sandbox, &model);
    model.script(Reply::status(401));
    let (status, body) = gateway.post(r#"{"content": "hi"}"#);
    assert!(
        status == "500" && body.contains(r#""code":"turn_failed""#),
        "{status} {body}"
    );
    model.script(Reply::text("better"));
    assert!(
        gateway
            .post(r#"{"content": "again"}"#)
            .1
            .contains(r#""reply":"better""#)
    );
    gateway.stop();
}

#[test]
fn a_client_that_lost_its_gateway_asks_the_next_one_with_the_same_key() {
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    let mut gateway = start_gateway(&sandbox, &model);
    model.script(Reply::deltas(["Hel", "lo", "!"]).hang_after(2));
    let body = r#"{"content": "hi", "idempotency_key": "k", "reply": "stream"}"#;
    let mut stream = gateway.begin(body);
    let mut seen = String::new();
    while !seen.contains("Hel") {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    gateway.kill();

    model.script(Reply::text("once"));
    model.otherwise(Reply::text("twice"));
    let gateway = start_gateway(&sandbox, &model);
    let body = r#"{"content": "hi", "idempotency_key": "k"}"#;
    let (status, first) = gateway.post(body);
    assert!(
        status == "200" && first.contains(r#""reply":"once""#),
        "{status} {first}"
    );
    assert_eq!(gateway.post(body).1, first);
    gateway.stop();
    assert_eq!(
        model.requests().len(),
        2,
        "one turn was interrupted, one answered"
    );
}

// With a low file limit, bub closes idle tapes before the process runs out of file descriptors.
#[cfg(target_os = "linux")]
#[test]
fn with_few_open_files_every_session_is_answered_all_the_same() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let (sandbox, model) = (Sandbox::new(), ModelServer::start());
    model.otherwise(Reply::text("fine"));
    let gateway = start_gateway(&sandbox, &model);
    let pid = Pid::from_raw(gateway.child.id().try_into().unwrap());
    prlimit(
        pid,
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            maximum: Some(64),
        },
    )
    .unwrap();
    for session in 0..60 {
        let (status, body) =
            gateway.post(&format!(r#"{{"content": "hi", "chat_id": "c{session}"}}"#));
        assert_eq!(status, "200", "{session}: {body}");
    }
    gateway.stop();
}
