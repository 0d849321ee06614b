//! The slots of a handoff: reading, rendering, and states without slots.

use bub_tape::{
    Entry, EntryId, HandoffSlots, HandoffSource, MemoryStore, Tape, TapeName, ViewOptions,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn slots() -> HandoffSlots {
    HandoffSlots {
        goal: "a boat".to_owned(),
        latest_instruction: "add\na sail".to_owned(),
        decisions: vec!["of wood".to_owned()],
        done: vec!["#7 fs_write {}".to_owned(), "hull".to_owned()],
        in_progress: Vec::new(),
        next: vec!["mast".to_owned()],
        files: vec!["hull.md".to_owned(), "mast.md".to_owned()],
        open_questions: vec!["which color?".to_owned()],
        source: HandoffSource {
            first: EntryId::new(1),
            last: EntryId::new(40),
            instruction: Some(EntryId::new(2)),
        },
    }
}

async fn opening_text(name: &str, state: Value) -> Option<String> {
    let store = std::sync::Arc::new(MemoryStore::new());
    let tape = Tape::new(store, TapeName::new("t").unwrap());
    let batch = vec![
        Entry::anchor("session/start", None),
        Entry::message("user", "add\na sail"),
    ];
    tape.append_all(batch).await.unwrap();
    tape.handoff(name, Some(state)).await.unwrap();
    let view = tape.view(&ViewOptions::new()).await.unwrap();
    let text = view.messages.first()?.get("content")?.as_str()?;
    Some(text.to_owned())
}

// S-57: the slots open the view, with what can be looked up. The instruction is not repeated if its entry is carried.
#[tokio::test]
async fn the_slots_open_the_view() {
    let mut state = json!(slots());
    let further =
        json!({"reason": "context_budget", "window": 9, "todo": ["paint"], "summary": "so far"});
    for (key, value) in further.as_object().unwrap() {
        state[key] = value.clone();
    }
    let before = "<handoff name=\"phase\">\nso far\nGoal: a boat\nDecisions:\n- of wood\nDone:\n- #7 fs_write {}\n- hull\n\
                  Next:\n- mast\nOpen questions:\n- which color?\nFiles: hull.md, mast.md\n";
    let after = "{\"todo\": [\"paint\"]}\n[Entries 1 to 40 are not shown; ";
    let instruction = "Latest instruction:\nadd\na sail\n";
    let text = opening_text("phase", state.clone()).await.unwrap();
    let expected = format!("{before}{instruction}{after}");
    assert!(text.starts_with(&expected), "{text}\n{expected}");
    assert!(text.contains("tape_search"), "{text}");
    state["carry"] = json!([2]);
    let text = opening_text("phase", state).await.unwrap();
    assert!(text.starts_with(&format!("{before}{after}")), "{text}");
}

// L6, W-5: the states of other programs and of earlier versions are rendered as they were.
#[tokio::test]
async fn a_state_without_slots_is_rendered_as_before() {
    let digest = json!({"goal": "a boat", "done": [], "source": [1, 2]});
    let mut incomplete = json!(slots());
    incomplete.as_object_mut().unwrap().remove("decisions");
    let mut other_type = json!(slots());
    other_type["next"] = "mast".into();
    let cases = [
        (json!({"summary": "all is well"}), "all is well".to_owned()),
        (
            json!({"owner": "human", "next": "x"}),
            r#"{"owner": "human", "next": "x"}"#.to_owned(),
        ),
        (
            json!({"reason": "r", "digest": digest}),
            bub_python_json(&json!({"reason": "r", "digest": digest})),
        ),
        (incomplete.clone(), bub_python_json(&incomplete)),
        (other_type.clone(), bub_python_json(&other_type)),
        (json!("free text"), "free text".to_owned()),
    ];
    for (state, expected) in cases {
        let text = opening_text("phase", state).await.unwrap();
        assert_eq!(
            text,
            format!("<handoff name=\"phase\">\n{expected}\n</handoff>")
        );
    }
    assert_eq!(
        opening_text("session/start", json!({"owner": "human"})).await,
        None
    );
}

/// Returns JSON with the spaces of the Python version.
fn bub_python_json(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let fields = map
                .iter()
                .map(|(key, value)| format!("{}: {}", json!(key), bub_python_json(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(bub_python_json).collect();
            format!("[{}]", items.join(", "))
        }
        value => value.to_string(),
    }
}

#[test]
fn headings_are_read_with_and_without_markdown() {
    let texts = [
        "Goal: a boat\nDecisions:\n- of wood\nOpen questions: which color?",
        "Goal: a boat. Decisions: of wood. Open questions: which color?",
        "## Goal\na boat\n\n## Decisions\n* of wood\n\n## Open questions\n1) which color?",
        "**Goal:** a boat\n**Decisions:**\n- of wood\n**Open Questions:**\n- which color?\n**Next**\n- None.",
        "- Goal： a\n  boat\n- decisions: of wood\n- OPEN QUESTIONS:\n  - which color?\nDone: n/a",
    ];
    for text in texts {
        let (read, other) = HandoffSlots::parse(text);
        let question = read.open_questions[0].trim_start_matches("1) ");
        let goal = read.goal.trim_end_matches('.');
        assert_eq!((goal, question), ("a boat", "which color?"), "{text}");
        let decision = read.decisions[0].trim_end_matches('.');
        assert_eq!(decision, "of wood", "{text}");
        assert!(
            read.next.is_empty() && read.done.is_empty() && other.is_empty(),
            "{text}"
        );
    }
    let (read, other) = HandoffSlots::parse("A story.\nNext.js: is used\nIt ends: well.");
    assert_eq!(read, HandoffSlots::default());
    assert_eq!(other, "A story.\nNext.js: is used\nIt ends: well.");
}

proptest! {
    /// What the model writes in the form in which it sees slots is read as it was, except the slots that bub fills.
    #[test]
    fn rendered_slots_are_read_again(
        goal in "[a-z]{1,9}( [a-z.,]{1,9}){0,4}",
        lists in prop::collection::vec(prop::collection::vec("[a-zé数]{2,9}( [a-z0-9=/]{1,9}){0,4}", 0..5), 5),
    ) {
        let words = |list: &Vec<String>| list.iter().filter(|item| *item != "none").cloned().collect::<Vec<_>>();
        let mut written = HandoffSlots { goal, ..slots() };
        [written.decisions, written.done, written.in_progress, written.next, written.open_questions] =
            [0, 1, 2, 3, 4].map(|index| words(&lists[index]));
        let (read, other) = HandoffSlots::parse(&written.to_text(true));
        let expected = HandoffSlots {
            latest_instruction: String::new(),
            files: Vec::new(),
            source: HandoffSource::default(),
            ..written
        };
        prop_assert_eq!(read, expected);
        prop_assert_eq!(other, "");
    }

    /// Any text of a model is read without a panic, and nothing before the first heading is lost.
    #[test]
    fn any_text_is_read(text in "\\PC{0,80}", rest in "(Goal|Done|#|\\*|:|-| |\\n|\\PC){0,40}") {
        let (_, other) = HandoffSlots::parse(&format!("{text}\nGoal: x\n{rest}"));
        prop_assert!(other.len() <= text.len());
    }
}
