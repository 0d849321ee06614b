//! The tools of the builtin plugin. `names` lists tools for the model and finds them by name.

mod bash;
mod code;
mod conversation;
mod describe;
mod fs;
mod help;
mod names;
mod recall;
mod search;
mod session;
mod skill;
mod spill;
mod subagent;
mod tape;
mod todo;

use std::sync::Arc;

use bub_kernel::PluginContext;
use serde_json::{Value, json};

pub use bash::BashTools;
pub use conversation::context_left;
pub use fs::FileTools;
pub use help::{CHAT_COMMANDS, help, help_text};
pub use names::{find_tool, select_tools};
pub(crate) use names::{has_name, unknown_tool_guidance};
pub use recall::tape_read;
pub use session::REASONING_EFFORTS;
pub use skill::SkillTools;
pub use tape::{tape_anchors, tape_info, tape_search};

use self::{
    code::CodeTools, conversation::ConversationTools, describe::DescribeTools, recall::MemoryTools,
    search::SearchTools, session::SessionTools, subagent::SubagentTool, todo::TodoTools,
};
use crate::agent::Agent;

/// Registers the builtin tools. The model sees them in this order.
pub(crate) fn register_tools(context: &PluginContext<'_>, agent: &Arc<Agent>) {
    context.add_tools(CodeTools::new(Arc::clone(agent)).available_tools());
    context.add_tool(spill::spill_read());
    let bash = BashTools::with_agent(Arc::clone(agent));
    context.add_tools(Arc::new(bash).tools());
    let files = fs::FileFinder::new(Arc::clone(agent));
    context.add_tools(Arc::new(FileTools::new(files.clone())).tools());
    context.add_tools(Arc::new(SkillTools::new(Arc::clone(&agent.skills))).tools());
    let describe = DescribeTools {
        agent: Arc::clone(agent),
    };
    context.add_tools(Arc::new(describe).tools());
    context.add_tool(tape_info());
    context.add_tool(tape_search());
    context.add_tool(tape::tape_reset());
    context.add_tool(tape::tape_handoff());
    context.add_tool(tape_anchors());
    context.add_tool(SubagentTool::new(Arc::clone(agent)));
    context.add_tools(Arc::new(SearchTools(files)).tools());
    context.add_tools(Arc::new(TodoTools).tools());
    context.add_tool(tape_read());
    let memory = MemoryTools {
        agent: Arc::clone(agent),
    };
    context.add_tools(Arc::new(memory).tools());
    context.add_tool(help());
    let sessions = SessionTools {
        agent: Arc::clone(agent),
    };
    context.add_tools(Arc::new(sessions).tools());
    let conversation = ConversationTools {
        agent: Arc::clone(agent),
    };
    context.add_tools(Arc::new(conversation).tools());
}

/// Returns the JSON Schema of an object that has all these properties.
fn object_schema(properties: &Value) -> Value {
    let names = properties.as_object().into_iter().flatten();
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    json!({"type": "object", "properties": properties, "required": names})
}

/// Returns the JSON Schema of an object with the name of its class in the stub of code mode.
fn titled_schema(title: &str, properties: &Value) -> Value {
    let mut schema = object_schema(properties);
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("title".to_owned(), title.into());
    }
    schema
}
