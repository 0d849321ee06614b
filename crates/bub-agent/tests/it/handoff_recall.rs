//! Recall after handoffs: an agent with a small window answers questions about a long conversation.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bub_kernel::ChannelMessage;
use bub_tape::{Entry, EntryKind, SessionInfo};
use bub_testkit::model::{ModelServer, Reply, Request};
use serde_json::{Value, json};

use crate::{
    handoff::{asks_for_summary, fixture_with_window},
    harness::AgentFixture,
    recording::tape_of,
    turn_loop::entries,
};

/// The context window of the agent in tokens.
const WINDOW: u64 = 4_000;
/// Number of user messages before the questions. Each has an answer, so the conversation has twice as many messages.
const TURNS: usize = 1_000;
/// Minimum share of questions in percent that the agent must answer with `tape.search`.
const MIN_WITH_RECALL: usize = 90;
/// Maximum share without it. More would mean that the questions do not need recall.
const MAX_WITHOUT_RECALL: usize = 50;

/// A fact that the conversation mentions once.
struct Fact {
    statement: String,
    question: String,
    /// A value that occurs nowhere else.
    value: String,
}

const PROJECTS: [&str; 10] = [
    "Falcon", "Harbor", "Juniper", "Lantern", "Meadow", "Nimbus", "Orchard", "Pelican", "Quarry",
    "Saffron",
];

/// Statements and questions about a project. A question uses other words than the statement where it can.
const ENGLISH: [(&str, &str); 5] = [
    (
        "For {project}, please run the billing service on port {value}.",
        "Which port did I pick for the billing service of {project}?",
    ),
    (
        "By the way, the contact at the supplier of {project} is called {value}.",
        "Who do we contact at the {project} supplier?",
    ),
    (
        "I decided that backups of {project} are kept for {value} days.",
        "How many days do we keep {project} backups?",
    ),
    (
        "The bucket with the raw images of {project} is named {value}.",
        "What is the name of the bucket for {project} images?",
    ),
    (
        "We lost the {project} tender by {value} euros, a pity.",
        "By how many euros did we lose the tender of {project}?",
    ),
];
const CHINESE: [(&str, &str); 5] = [
    (
        "{project} 的数据库密码轮换周期定为 {value} 天。",
        "{project} 的数据库密码多少天轮换一次？",
    ),
    (
        "负责 {project} 验收的同事叫 {value}。",
        "谁负责 {project} 的验收？",
    ),
    (
        "{project} 的服务器放在 {value} 机房。",
        "{project} 的服务器在哪个机房？",
    ),
    (
        "{project} 的合同编号是 {value}，请记住。",
        "{project} 合同的编号是什么？",
    ),
    (
        "我们把 {project} 的发布时间推迟到 {value}。",
        "{project} 推迟到什么时候发布？",
    ),
];

fn facts() -> Vec<Fact> {
    let templates = |index: usize| {
        if index.is_multiple_of(2) {
            ENGLISH
        } else {
            CHINESE
        }
    };
    let facts = PROJECTS.iter().enumerate().flat_map(|(index, project)| {
        templates(index)
            .into_iter()
            .enumerate()
            .map(move |(number, (statement, question))| {
                let value = format!(
                    "{}{}",
                    ["7", "Vera", "3", "zq-", "9"][number],
                    1_000 + 37 * (index * 5 + number)
                );
                let fill = |text: &str| {
                    text.replace("{project}", project)
                        .replace("{value}", &value)
                };
                Fact {
                    statement: fill(statement),
                    question: fill(question),
                    value: value.clone(),
                }
            })
    });
    facts.collect()
}

/// Returns the message of a turn: a fact every twentieth time, else talk about the same projects and things.
fn message(turn: usize, facts: &[Fact]) -> String {
    let index = turn / 20 * 17 % facts.len();
    if turn % 20 == 7 {
        return facts[index].statement.clone();
    }
    let project = PROJECTS[turn * 7 % PROJECTS.len()];
    match turn % 6 {
        0 => format!(
            "How is {project} today? Did the billing service of {project} start, and is the port open?"
        ),
        1 => format!("Write to the supplier of {project} that the images arrive on day {turn}."),
        2 => format!("{project} 的数据库今天慢吗？合同和验收有消息吗？"),
        3 => {
            format!("Check the backups and the bucket of {project}, then tell me about the tender.")
        }
        4 => format!("{project} 的服务器和机房都正常，发布准备得怎么样了？"),
        _ => format!("What else is open in {project}? Name the days that we lost."),
    }
}

/// The scripted model. It reads what bub shows it: if a message contains the value, it knows the answer. Otherwise, it
/// searches once, with the question as it was asked.
fn answer(request: &Request, facts: &[Fact], has_recall: bool) -> Reply {
    let body = request.json();
    let messages = body["messages"].as_array().unwrap();
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    if asks_for_summary(request) {
        return Reply::text(summary(&text(&messages[1])));
    }
    let asked = facts.iter().rev().find(|fact| {
        let latest = messages
            .iter()
            .rfind(|message| message["role"] == "user")
            .unwrap();
        text(latest).ends_with(&fact.question)
    });
    let Some(fact) = asked else {
        return Reply::text("Noted, I will see to it and report when there is news.");
    };
    let is_searched = messages.last().unwrap()["role"] == "tool";
    if messages[1..]
        .iter()
        .any(|message| text(message).contains(&fact.value))
    {
        Reply::text(format!("It is {}.", fact.value))
    } else if has_recall && !is_searched {
        let arguments = json!({"query": fact.question, "limit": 5});
        Reply::new().call("search", "tape_search", &arguments.to_string())
    } else {
        Reply::text("I do not know.")
    }
}

/// Writes a summary: the newest decisions that the conversation or an earlier summary names.
fn summary(transcript: &str) -> String {
    let lines = transcript.lines().map(|line| line.trim_start_matches("- "));
    let mut decisions: Vec<&str> = lines.filter(|line| line.starts_with("I decided")).collect();
    decisions.drain(..decisions.len().saturating_sub(8));
    format!(
        "Goal: run the projects\nDecisions:\n- {}",
        decisions.join("\n- ")
    )
}

/// Returns the share of questions in percent that the agent answers in a session. With a conversation, each question is
/// asked in a copy of it, so that no question is part of the conversation.
async fn share_answered(
    name: &str,
    fixture: &AgentFixture,
    conversation: Option<&[Entry]>,
    facts: &[Fact],
) -> usize {
    let mut answered = 0;
    for fact in facts {
        let mut session = name.to_owned();
        if let Some(conversation) = conversation {
            session = format!("{name}: {}", fact.question);
            let info = SessionInfo::new(session.as_str());
            let (source, target) = (tape_of(fixture, "s"), tape_of(fixture, &session));
            source
                .copy_to(&target, conversation.to_vec(), &info)
                .await
                .unwrap();
        }
        let message = ChannelMessage::new(&session, "lab", fact.question.clone());
        let result = fixture.own_turn(message).await.unwrap();
        answered += usize::from(result.model_output.contains(&fact.value));
    }
    answered * 100 / facts.len()
}

// W-5, W-22: handoffs drop most of a long conversation, and `tape.search` finds it again.
#[tokio::test]
async fn a_small_window_answers_questions_about_a_long_conversation() {
    let (server, facts) = (ModelServer::start(), Arc::new(facts()));
    assert_eq!(facts.len(), 50);
    let values: BTreeSet<&str> = facts.iter().map(|fact| fact.value.as_str()).collect();
    assert_eq!(values.len(), 50);
    let has_recall = Arc::new(AtomicBool::new(false));
    let (scripted, recall) = (Arc::clone(&facts), Arc::clone(&has_recall));
    server
        .forget_requests()
        .answer_with(move |request| answer(request, &scripted, recall.load(Ordering::Relaxed)));
    let fixture = fixture_with_window(&server, WINDOW);
    let running = fixture.framework.open_scope().await.unwrap();
    for turn in 0..TURNS {
        let message = ChannelMessage::new("s", "lab", message(turn, &facts));
        fixture.own_turn(message).await.unwrap();
    }
    let tape = entries(&fixture, "s").await;
    let count = |kind: EntryKind| tape.iter().filter(|entry| entry.kind == kind).count();
    assert!(count(EntryKind::Message) >= 2 * TURNS);
    let is_mentioned = |fact: &Fact| {
        tape.iter()
            .any(|entry: &Entry| json!(entry.payload).to_string().contains(&fact.value))
    };
    assert!(
        facts.iter().all(is_mentioned),
        "the conversation mentions all facts"
    );
    let handoffs = count(EntryKind::Anchor) - 1;
    let conversation = tape.iter().filter(|entry| entry.kind != EntryKind::Event);
    let conversation: Vec<Entry> = conversation.cloned().collect();
    let without = share_answered("without", &fixture, Some(&conversation), &facts).await;
    has_recall.store(true, Ordering::Relaxed);
    let with = share_answered("with", &fixture, Some(&conversation), &facts).await;
    // All questions in the session of the conversation: the earlier questions must not hide the answers.
    let in_session = share_answered("s", &fixture, None, &facts).await;
    println!(
        "{handoffs} handoffs; answered without recall: {without} %, with recall: {with} %, in one session: {in_session} %"
    );
    running.close().await.unwrap();
    assert!(without <= MAX_WITHOUT_RECALL, "{without} %");
    assert!(with >= MIN_WITH_RECALL, "{with} %");
    assert!(in_session >= MIN_WITH_RECALL, "{in_session} %");
}
