//! Deferred tools, unknown tools, and results that hooks replace.

use bub_kernel::{
    ChannelMessage, FrameworkBuilder, ToolCall, ToolDecision, ToolOutcome, hooks, tool,
};
use bub_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::{
    harness::AgentFixture,
    turn_loop::{entries, events},
};

/// Return the word of the day.
#[tool(crate = bub_kernel, name = "lab.word", deferred)]
async fn lab_word(
    /// Language
    #[default("en")]
    language: String,
) -> String {
    format!("marmalade in {language}")
}

/// Return a number.
#[tool(crate = bub_kernel, name = "lab.number", deferred, direct)]
async fn lab_number() -> u32 {
    7
}

fn with_deferred(builder: FrameworkBuilder) -> FrameworkBuilder {
    builder.tool(lab_word()).tool(lab_number())
}

async fn say(fixture: &AgentFixture, text: &str) -> String {
    let message = ChannelMessage::new("s", "lab", text);
    fixture.own_turn(message).await.unwrap().model_output
}

/// Returns the last tools of each request.
fn last_tools(server: &ModelServer) -> Vec<Vec<String>> {
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
    let names = |request: &Value| -> Vec<String> {
        let names: Vec<_> = request["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(name)
            .collect();
        let first = names.iter().position(|name| name == "tool_describe");
        names[first.unwrap_or(names.len())..].to_vec()
    };
    let requests = server.requests();
    requests
        .iter()
        .map(|request| names(&request.json()))
        .collect()
}

/// Returns the last tool result that the model saw in each request.
fn last_results(server: &ModelServer) -> Vec<String> {
    let requests = server.requests();
    let result = |request: &Value| -> Option<String> {
        let mut messages = request["messages"].as_array()?.iter().rev();
        let message = messages.find(|message| message["role"] == "tool")?;
        Some(message["content"].as_str()?.to_owned())
    };
    requests
        .iter()
        .filter_map(|request| result(&request.json()))
        .collect()
}

// P-71, P-72, P-73
#[tokio::test]
async fn a_deferred_tool_is_offered_once_it_is_described() {
    let server = ModelServer::start();
    let describe = json!({"names": [" LAB.word", "lab_word", "fs_read", "help", "nope"]});
    server.script(Reply::new().call("a", "tool_describe", &describe.to_string()));
    server.script(Reply::new().call("b", "lab_word", "{}"));
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking_so(&server.url(), &[], with_deferred);
    let running = fixture.framework.open_scope().await.unwrap();
    say(&fixture, "go").await;
    assert_eq!(
        last_tools(&server),
        [
            vec!["tool_describe"],
            vec!["tool_describe", "lab_word"],
            vec!["tool_describe", "lab_word"]
        ]
    );
    let results = last_results(&server);
    let described: Value = serde_json::from_str(&results[0]).unwrap();
    let names = described["tools"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["lab_word", "lab_word", "fs_read"]);
    assert_eq!(
        described["tools"][0]["description"],
        "Return the word of the day."
    );
    assert_eq!(
        described["tools"][0]["parameters"]["properties"]["language"]["default"],
        "en"
    );
    assert_eq!(described["unknown"], json!(["help", "nope"]));
    assert_eq!(results[1], "marmalade in en");
    let loaded = events(&entries(&fixture, "s").await, "tool.loaded");
    assert_eq!(loaded, [json!({"names": ["lab.word"]})]);
    // The prompt lists the tools in every step, also when they are loaded.
    let requests = server.requests();
    let system = |index: usize| requests[index].json()["messages"][0].clone();
    let text = system(0)["content"].as_str().unwrap().to_owned();
    assert!(
        text.contains("\n- lab_word\n- lab_number\n</deferred_tools>\n\n<available_skills>"),
        "{text}"
    );
    assert_eq!((system(1), system(2)), (system(0), system(0)));
    // A tool stays loaded in later turns, until the tape is reset.
    say(&fixture, "again").await;
    assert_eq!(last_tools(&server)[3], ["tool_describe", "lab_word"]);
    say(&fixture, ",tape.reset").await;
    say(&fixture, "again").await;
    assert_eq!(last_tools(&server)[4], ["tool_describe"]);
    running.close().await.unwrap();
}

// P-49, P-74, P-75
#[tokio::test]
async fn a_tool_that_is_not_loaded_answers_how_to_load_it() {
    let server = ModelServer::start();
    server.script(Reply::new().call("a", "lab_word", "{}"));
    server.script(Reply::new().call("b", "lab_wrod", "{}"));
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking_so(&server.url(), &[], with_deferred);
    say(&fixture, "go").await;
    let results = last_results(&server);
    assert!(
        results[0].contains("Call `tool_describe` with its name first"),
        "{results:?}"
    );
    // Names that are not offered are not suggested.
    assert!(!results[1].contains("- lab_word"), "{results:?}");
    assert_eq!(say(&fixture, ",lab.word de").await, "marmalade in de");
}

// P-72: without deferred tools, the model does not see the tool that loads them.
#[tokio::test]
async fn tool_describe_needs_deferred_tools() {
    let server = ModelServer::start();
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking(&server.url());
    say(&fixture, "go").await;
    assert!(last_tools(&server)[0].is_empty());
    let body = server.requests()[0].json().to_string();
    assert!(!body.contains("deferred_tools"), "{body}");
}

// P-75, P-89, W-8
#[tokio::test]
async fn hooks_see_unknown_tools_and_may_replace_failures() {
    struct AnsweringPlugin;

    #[hooks(crate = bub_kernel)]
    impl AnsweringPlugin {
        fn before_tool_call(&self, call: &ToolCall) -> Option<ToolDecision> {
            let answer = json!(format!("{}: {:?}", call.tool, call.arguments.get("a")));
            (call.tool == "magic").then_some(ToolDecision::Replace(answer))
        }

        fn after_tool_call(&self, call: &ToolCall, result: &ToolOutcome) -> Option<Value> {
            match (call.tool.as_str(), &result.result) {
                ("fs.read", Err(error)) => {
                    Some(json!(format!("replaced: {}", error.kind().name())))
                }
                ("mystery", Ok(guidance)) => Some(json!([guidance])),
                _ => None,
            }
        }
    }

    let server = ModelServer::start();
    server.script(Reply::new().call("a", "magic", r#"{"a": 1}"#));
    server.script(Reply::new().call("b", "mystery", "{}"));
    server.script(Reply::new().call("c", "fs_read", r#"{"path": "missing"}"#));
    server.otherwise(Reply::text("done"));
    let fixture = AgentFixture::asking_with(&server.url(), "answering", AnsweringPlugin);
    say(&fixture, "go").await;
    let results = last_results(&server);
    assert_eq!(results[0], "magic: Some(Number(1))");
    assert!(
        results[1].starts_with("[\"Tool `mystery` does not exist"),
        "{results:?}"
    );
    assert_eq!(results[2], "replaced: not_found");
}
