//! Whose text a turn contains, and how later turns know it.

use std::{collections::BTreeSet, sync::Arc};

use bub_kernel::{
    Envelope, Framework, Inbound, Provenance, Result, Role, RunningScope, Sender, SessionId, State,
    Turn, TurnTape, UntrustedSource, hooks,
};
use bub_tape::{Entry, EntryKind, MemoryStore, PROVENANCE_KEY, handoff_entries};
use serde_json::json;

use crate::support::{builder, entries, framework, store_plugin};

/// Reads the view, then a web page if the message says so, and writes the answer.
struct PageReader;

#[hooks(crate = bub_kernel)]
impl PageReader {
    async fn run_model(&self, turn: &Turn) -> Result<Option<String>> {
        let content = turn.message().content().into_owned();
        turn.tape().build_view("model", None).await?;
        if content == "read" {
            turn.mark_untrusted(UntrustedSource::WebPage);
            let result = Entry::tool_result(vec![json!("a page")]);
            turn.tape().append(vec![result]).await?;
        }
        if content == "hand off" {
            let anchor = handoff_entries("phase", Some(json!({"summary": "all"})), <_>::default());
            turn.tape().append(anchor).await?;
        }
        let sources: Vec<_> = turn.untrusted_sources().into_iter().collect();
        Ok(Some(format!(
            "{:?} {sources:?}",
            turn.provenance().least_role
        )))
    }
}

fn from(role: Role, text: &str) -> Inbound {
    let sender = Sender {
        role,
        ..Sender::terminal()
    };
    let message = Envelope::from_text(text).with("session_id", "group");
    Inbound::from(message).with_sender(sender)
}

async fn run(framework: &Framework, inbound: Inbound) -> String {
    let result = framework.process_inbound(inbound).await.unwrap();
    result.model_output
}

async fn open() -> (Framework, RunningScope) {
    let store = Arc::new(MemoryStore::new());
    let framework = builder([store_plugin(store)])
        .plugin("reader", PageReader)
        .build();
    let scope = framework.open_scope().await.unwrap();
    (framework, scope)
}

#[tokio::test]
async fn a_later_turn_has_the_provenance_of_the_entries_in_its_view() {
    let (framework, _scope) = open().await;
    assert_eq!(run(&framework, from(Role::Owner, "hi")).await, "None []");
    let stamped = |entry: &&Entry| entry.meta.contains_key(PROVENANCE_KEY);
    let all = entries(&framework, "group").await;
    assert_eq!(
        all.iter().filter(stamped).count(),
        0,
        "owners leave no mark"
    );
    assert_eq!(
        run(&framework, from(Role::Owner, "read")).await,
        "None [WebPage]"
    );
    assert_eq!(
        run(&framework, from(Role::Owner, "and?")).await,
        "None [WebPage]"
    );
    let member = from(Role::Member, "me too").with_untrusted(UntrustedSource::Forwarded);
    assert_eq!(
        run(&framework, member).await,
        "Some(Member) [WebPage, Forwarded]"
    );
    assert_eq!(
        run(&framework, from(Role::Owner, "and now?")).await,
        "Some(Member) [WebPage, Forwarded]"
    );
}

#[tokio::test]
async fn a_summary_of_marked_text_is_marked() {
    let (framework, _scope) = open().await;
    run(&framework, from(Role::Member, "read")).await;
    run(&framework, from(Role::Owner, "hand off")).await;
    let all = entries(&framework, "group").await;
    let anchor = all.iter().rfind(|entry| entry.kind == EntryKind::Anchor);
    assert_eq!(
        anchor.unwrap().meta[PROVENANCE_KEY],
        json!({"role": "member", "untrusted": ["web_page"]})
    );
    assert_eq!(
        run(&framework, from(Role::Owner, "next")).await,
        "Some(Member) [WebPage]"
    );
}

#[tokio::test]
async fn an_anchor_of_an_owner_who_read_nothing_ends_the_marks() {
    let (framework, _scope) = open().await;
    run(&framework, from(Role::Member, "read")).await;
    let tape = framework.session_tape(&SessionId::from("group")).unwrap();
    tape.unwrap().handoff("fresh", None).await.unwrap();
    assert_eq!(run(&framework, from(Role::Owner, "next")).await, "None []");
}

#[tokio::test]
async fn a_nested_run_marks_its_parent_and_inherits_its_marks() {
    let framework = framework([]);
    let turn = Turn::detached(&framework, from(Role::Owner, "hi"), State::new());
    turn.mark_untrusted(UntrustedSource::Webhook);
    let session_id = SessionId::from("temp/1");
    let tape = TurnTape::open_nested(&framework, &session_id)
        .await
        .unwrap();
    let nested = turn.nested_run(session_id, State::new(), tape);
    nested.mark_untrusted(UntrustedSource::WebPage);
    let both = BTreeSet::from([UntrustedSource::WebPage, UntrustedSource::Webhook]);
    assert_eq!(turn.untrusted_sources(), both);
    assert_eq!(nested.untrusted_sources(), both);
}

#[tokio::test]
async fn a_batch_has_the_lowest_role_and_all_marks_of_its_messages() {
    let owner = from(Role::Owner, "one").with_untrusted(UntrustedSource::Forwarded);
    let batch = vec![owner, from(Role::Member, "two"), from(Role::Owner, "three")];
    let merged = Inbound::merge_batch(batch).unwrap();
    let sources = BTreeSet::from([UntrustedSource::Forwarded]);
    assert_eq!(merged.provenance(), Provenance::new(Role::Member, sources));
}

#[tokio::test]
async fn an_unreadable_mark_counts_as_the_worst() {
    let (framework, _scope) = open().await;
    run(&framework, from(Role::Owner, "hi")).await;
    let tape = framework.session_tape(&SessionId::from("group")).unwrap();
    let broken = Entry::message("user", "x").with_meta(PROVENANCE_KEY, json!({"role": "boss"}));
    tape.unwrap().append_all(vec![broken]).await.unwrap();
    assert_eq!(
        run(&framework, from(Role::Owner, "next")).await,
        "Some(Guest) [Unknown]"
    );
}
