//! The tools that `#[tools]` generates from an `impl` block.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bub_kernel::{
    BoxError, Envelope, Error, ErrorKind, Framework, Result, State, Tool, ToolContext,
    ToolExposure, Turn, hooks, tools,
};
use serde_json::{Value, json};

struct Github {
    host: String,
    calls: AtomicU64,
}

impl Github {
    const FIRST: u64 = 1;

    fn connect(host: &str) -> Arc<Self> {
        Arc::new(Self {
            host: host.to_owned(),
            calls: AtomicU64::default(),
        })
    }
}

#[tools(crate = bub_kernel)]
impl Github {
    /// Reads an issue
    /// with its comments.
    #[tool(name = "github.issue", read_only)]
    async fn issue(
        &self,
        context: &ToolContext,
        /// The repository.
        repo: String,
        #[default(Self::FIRST)] number: u64,
    ) -> Result<String> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if repo == "gone" {
            return Err(Error::not_found("no such repository"));
        }
        let session = context.turn.session_id();
        Ok(format!("{}/{repo}#{number} for {session}", self.host))
    }

    /// Counts the calls, where it may block.
    #[tool(command_only)]
    fn count(&self) -> Value {
        let thread = std::thread::current().name().map(str::to_owned);
        json!({"calls": self.calls.load(Ordering::Relaxed), "thread": thread})
    }

    /// Breaks.
    fn r#break(&self, context: ToolContext) {
        panic!("{} broke", context.run_id());
    }

    /// Is not there.
    #[cfg(any())]
    async fn nowhere(&self) -> Missing {}
}

#[hooks(crate = bub_kernel)]
impl Github {
    fn resolve_session(&self) -> String {
        self.host.clone()
    }
}

fn context() -> ToolContext {
    let message = Envelope::from_text("hi").with("session_id", "s");
    let turn = Turn::detached(&Framework::builder().build(), message, State::new());
    ToolContext::new(turn)
}

async fn call(tool: &Arc<dyn Tool>, arguments: Value) -> Result<Value> {
    let arguments = arguments.as_object().cloned().unwrap();
    bub_kernel::run_tool(&**tool, arguments, context()).await
}

#[test]
fn each_method_is_a_tool_described_like_a_function() {
    let tools = Github::connect("github.com").tools();
    let names: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    assert_eq!(names, ["github.issue", "count", "break"]);
    let issue = tools[0].spec();
    assert_eq!(issue.description, "Reads an issue with its comments.");
    assert!(issue.read_only && issue.exposure == ToolExposure::Auto);
    assert!(!tools[1].spec().read_only && tools[1].spec().exposure == ToolExposure::Command);
    assert_eq!(
        issue.parameters,
        json!({
            "type": "object",
            "properties": {
                "repo": {"type": "string", "description": "The repository."},
                "number": {"type": "integer", "default": 1},
            },
            "required": ["repo"],
        })
    );
}

#[tokio::test]
async fn the_tools_of_a_block_share_one_value() {
    let github = Github::connect("github.com");
    let tools = github.tools();
    let issue = call(&tools[0], json!({"repo": "a/b"})).await.unwrap();
    assert_eq!(issue, "github.com/a/b#1 for s");
    let error = call(&tools[0], json!({"repo": "gone", "number": "7"})).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);

    let count = call(&tools[1], json!({})).await.unwrap();
    assert_eq!(count["calls"], 2);
    assert_ne!(
        count["thread"],
        json!(std::thread::current().name()),
        "a method that is not async runs on a thread where it may block"
    );

    drop(tools);
    assert_eq!(Arc::strong_count(&github), 1);
}

#[tokio::test]
async fn arguments_and_panics_are_reported_like_those_of_a_function() {
    let tools = Github::connect("github.com").tools();
    let error = call(&tools[0], json!({"number": -1})).await.unwrap_err();
    assert_eq!(
        error.message(),
        "Tool 'github.issue' argument validation failed. argument 'repo' is missing; \
         argument 'number': expected a number from 0 to 18446744073709551615, got -1"
    );
    let error = call(&tools[2], json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tool);
}

struct Generic<T>(T);

#[tools(crate = bub_kernel)]
impl<T> Generic<T>
where
    T: Display + Send + Sync + 'static,
{
    /// Shows the value.
    async fn show(&self) -> String {
        self.0.to_string()
    }
}

#[tokio::test]
async fn a_block_may_be_generic() {
    let tools = Arc::new(Generic(7)).tools();
    assert_eq!(call(&tools[0], json!({})).await.unwrap(), "7");
}

#[test]
fn a_block_without_methods_has_no_tools() {
    struct Empty;
    #[tools(crate = bub_kernel)]
    impl Empty {}
    assert!(Arc::new(Empty).tools().is_empty());
}

#[test]
fn a_plugin_with_hooks_has_the_tools_of_its_block() {
    struct Both;
    #[hooks(crate = bub_kernel)]
    impl Both {
        fn system_prompt(&self) -> &'static str {
            "Use the tool."
        }
    }
    #[tools(crate = bub_kernel)]
    impl Both {
        /// Helps.
        async fn help(&self) -> &'static str {
            "here"
        }
    }
    struct HooksOnly;
    #[hooks(crate = bub_kernel)]
    impl HooksOnly {}
    let framework = Framework::builder()
        .plugin("both", Both)
        .plugin("hooks", HooksOnly)
        .build();
    let names = framework.tools().iter().map(|tool| &tool.spec().name);
    assert_eq!(names.collect::<Vec<_>>(), ["help"]);
}

#[test]
fn a_plugin_registers_the_tools_that_share_its_client() {
    let framework = Framework::builder()
        .plugin_with("github", |context| {
            context.add_tools(Github::connect("github.com").tools());
            Ok::<_, BoxError>(crate::support::FakePlugin::new())
        })
        .plugin_with("broken", |context| {
            context.add_tools(Arc::new(Generic(1)).tools());
            Err::<Github, _>(Error::config("no token"))
        })
        .build();
    let names: Vec<_> = framework
        .tools()
        .iter()
        .map(|tool| tool.spec().name.as_str())
        .collect();
    assert_eq!(names, ["github.issue", "count", "break"]);
}
