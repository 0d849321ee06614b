//! How tools are listed for the model and for users, and found by name.

use std::sync::Arc;

use bub_agent::tools::{find_tool, help, help_text, select_tools, tape_anchors};
use bub_kernel::{
    ChannelMessage, Envelope, Framework, Result, State, Tool, ToolContext, ToolSpec, Turn,
    async_trait,
};
use serde_json::{Map, Value, json};

use crate::harness::AgentFixture;

/// A tool without the macro.
struct FakeTool(ToolSpec);

#[async_trait]
impl Tool for FakeTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn call(&self, _: Map<String, Value>, _: ToolContext) -> Result<Value> {
        Ok(Value::Null)
    }
}

fn bare(name: &str, description: &str) -> Arc<dyn Tool> {
    Arc::new(FakeTool(ToolSpec::new(name, description, json!({}))))
}

/// Returns a tool of the builtin plugin.
fn builtin_tool(name: &str) -> Arc<dyn Tool> {
    let framework = AgentFixture::new().framework;
    let mut tools = framework.tools().iter();
    Arc::clone(tools.find(|tool| tool.spec().name == name).unwrap())
}

fn tools() -> Vec<Arc<dyn Tool>> {
    vec![
        builtin_tool("fs.read"),
        Arc::new(help()),
        bare("plain.tool", ""),
        bare("lines", "One.\nTwo.\n\nThree."),
        Arc::new(tape_anchors()),
    ]
}

fn names(tools: &[Arc<dyn Tool>]) -> Vec<&str> {
    tools.iter().map(|tool| tool.spec().name.as_str()).collect()
}

// H-75
#[test]
fn allowed_tools_are_found_in_any_case_by_both_names() {
    let tools = tools();
    let selected = select_tools(&[" TAPE_Anchors ", "Fs.Read", "fs_read"], &tools).unwrap();
    assert_eq!(names(&selected), ["fs.read", "tape.anchors"]);
    assert_eq!(select_tools::<&str>(&[], &tools).unwrap().len(), 0);
    let error = select_tools(&["fs.read", " x ", "y", ""], &tools)
        .err()
        .unwrap();
    assert_eq!(error.message(), "unknown tool name(s): 'x', 'y', ''");
}

// H-37
#[test]
fn a_call_by_a_wrong_name_gets_the_right_one() {
    let tools = tools();
    for name in ["fs_read", "fs.read", " FS_READ"] {
        assert_eq!(find_tool(name, &tools).unwrap().spec().name, "fs.read");
    }
    let problem = |name| find_tool(name, &tools).err().unwrap().message().to_owned();
    let suggestion = "does not exist. Did you mean one of the following?\n- fs_read";
    assert_eq!(problem("fs_raed"), format!("Tool `fs_raed` {suggestion}"));
    assert_eq!(problem("fs.reads"), format!("Tool `fs.reads` {suggestion}"));
    // The model cannot use a command.
    assert_eq!(
        problem("help"),
        "Tool `help` does not exist, and no similar tool is available."
    );
}

// H-119
#[tokio::test]
async fn help_lists_commands_and_tools_with_their_arguments() {
    assert_eq!(
        help_text(&tools()),
        "Lines that start with a comma are commands: `,name value key=value`.\n\
         Anything else after it runs in the shell: `,ls -la`.\n\
         The model does not see the output, unless you write `,!` instead: `,!ls -la`.\n\
         `,help NAME` describes one command; `,diff` shows what changed in a Git repository.\n\n\
         Commands:\n  ,help(name?)  Show this help, or the description and the arguments of one command or tool\n\n\
         Tools (also available to the model):\n  \
         ,fs.read(path, offset?, limit?)  Read a text file or a range of its lines\n  \
         ,plain.tool\n  ,lines  One\n  ,tape.anchors  List the most recent anchors of this session"
    );
    // The tool lists the registered tools.
    let framework = Framework::builder()
        .tool(FakeTool(builtin_tool("fs.edit").spec().clone()))
        .tool(help())
        .build();
    let turn = Turn::detached(&framework, Envelope::from_text(",help"), State::new());
    let text = framework.tools()[1]
        .call(Map::new(), ToolContext::new(turn))
        .await
        .unwrap();
    assert_eq!(text, help_text(framework.tools()));
    assert!(
        text.as_str()
            .unwrap()
            .contains(",fs.edit(path, old, new, start?, all?, edits?)  "),
        "{text}"
    );
}

// H-119
#[tokio::test]
async fn help_is_a_command() {
    let fixture = AgentFixture::new();
    let turn = fixture
        .own_turn(ChannelMessage::new("cli:local", "cli", ",help"))
        .await
        .unwrap();
    let text = turn.model_output;
    assert!(
        text.starts_with(&help_text(fixture.framework.tools())),
        "{text}"
    );
    assert!(
        text.contains("\n  ,thinking  ") && text.contains("(same as quit)"),
        "{text}"
    );
}
