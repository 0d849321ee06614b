//! The probe plugin. Every hook has a visible effect that the content of the message selects.
#![allow(
    missing_docs,
    dead_code,
    clippy::panic,
    clippy::unnecessary_wraps,
    reason = "a test program"
)]

use bub_kernel::{
    Admission, AdmissionDecision, Envelope, Error, Inbound, LlmDecision, LlmRequest, ModelOption,
    ModelOptions, ModelStream, PluginContext, Prompt, Result, State, StreamEvent, ToolCall,
    ToolContext, ToolDecision, ToolOutcome, Turn, TurnSnapshot, hooks,
    hooks::{Next, point},
    tool,
};
use serde_json::{Value, json};

pub(crate) struct Probe;

/// Adds two numbers.
#[tool(crate = bub_kernel, name = "probe.add", read_only)]
async fn add(
    /// The first.
    a: i64,
    /// The second.
    #[default(1)]
    b: i64,
) -> Result<String> {
    if a == 13 {
        Err(Error::invalid_input("thirteen is not added"))
    } else {
        Ok((a + b).to_string())
    }
}

/// Returns what it knows about its call.
#[tool(crate = bub_kernel, name = "probe.context")]
async fn call_context(context: ToolContext) -> Result<Value> {
    let turn = &context.turn;
    Ok(json!({
        "run_id": context.run_id(), "session_id": turn.session_id(), "role": turn.sender().role.name(),
        "state": context.state().get("built"),
    }))
}

impl Probe {
    pub(crate) fn new(context: &PluginContext<'_>) -> Result<Self> {
        context.add_tool(add());
        context.add_tool(call_context());
        Ok(Self)
    }
}

#[hooks(crate = bub_kernel)]
impl Probe {
    async fn resolve_session(&self, message: &Envelope, inbound: &Inbound) -> Option<String> {
        let content = message.content();
        let name = content.strip_prefix("session ")?;
        if name == "of a role" {
            return Some(inbound.sender().role.name().to_owned());
        }
        Some(name.to_owned())
    }

    async fn load_state(&self, session_id: &str, turn: &Turn) -> Value {
        let is_same = turn.session_id() == session_id;
        json!({"probe_session": session_id, "is_same": is_same, "_runtime_evil": true})
    }

    async fn build_prompt(
        &self,
        message: &Envelope,
        state: &State,
        turn: &Turn,
        next: Next<'_, point::BuildPrompt>,
    ) -> Result<Option<Prompt>> {
        state.set("built", turn.sender().role.name());
        state.remove("doomed");
        match &*message.content() {
            "build nothing" => Ok(None),
            "build wrong" => Err(Error::invalid_input("no prompt today")),
            "build wrapped" => {
                let below = next.call().await?;
                Ok(below.map(|below| format!("<{}>", below.text()).into()))
            }
            "build other" => {
                let other = Envelope::from_text("other");
                let args = bub_kernel::hooks::args::BuildPrompt {
                    message: &other,
                    ..next.args()
                };
                Ok(next.with_args(args).call().await?)
            }
            "build panic" => panic!("the probe panics"),
            content => Ok(Some(format!("built: {content}").into())),
        }
    }

    async fn run_model_stream(
        &self,
        prompt: &Prompt,
        state: &State,
        next: Next<'_, point::RunModelStream>,
    ) -> Result<Option<ModelStream>> {
        state.set("asked", true);
        match prompt.text().as_str() {
            "built: many" => Ok(Some(ModelStream::from_events(
                (0..1000).map(|number| StreamEvent::Text(format!("{number},"))),
            ))),
            "built: upper" => {
                let below = next.call().await?;
                Ok(below.map(|stream| {
                    stream.map_events(|event| match event {
                        StreamEvent::Text(delta) => StreamEvent::Text(delta.to_uppercase()),
                        other => other,
                    })
                }))
            }
            "built: broken" => Ok(Some(ModelStream::new(futures_util::stream::iter([
                Ok(StreamEvent::Text("half".to_owned())),
                Err(Error::new(
                    bub_kernel::ErrorKind::Provider,
                    "the probe broke",
                )),
            ])))),
            "built: empty" => Ok(Some(ModelStream::from_events([]))),
            _ => Ok(None),
        }
    }

    async fn render_outbound(&self, message: &Envelope, model_output: &str) -> Vec<Envelope> {
        match message.content().as_ref() {
            "render two" => vec![
                Envelope::from_text("one"),
                Envelope::from_text(model_output),
            ],
            _ => Vec::new(),
        }
    }

    fn system_prompt(&self, prompt: &Prompt) -> String {
        format!("probe sees {}", prompt.text())
    }

    async fn before_llm_call(&self, request: &LlmRequest) -> Option<LlmDecision> {
        match request.model.as_str() {
            "finish" => Some(LlmDecision::Finish("finished".to_owned())),
            "change" => {
                let mut request = request.clone();
                request.model = "changed".into();
                Some(LlmDecision::Proceed(request))
            }
            _ => None,
        }
    }

    async fn before_tool_call(&self, call: &ToolCall, turn: &Turn) -> Result<Option<ToolDecision>> {
        match call.tool.as_str() {
            "deny" => Ok(Some(ToolDecision::Deny(Some("no".to_owned())))),
            "replace" => Ok(Some(ToolDecision::Replace(json!({"instead": 1})))),
            "change" => Ok(Some(ToolDecision::Proceed(Some(
                [("b".to_owned(), json!(2))].into_iter().collect(),
            )))),
            "turn" => {
                let is_own = *turn.id() == call.run_id && turn.is_own_chat("lab", "1");
                let role = turn.sender().role.name();
                Ok(Some(ToolDecision::Replace(json!([
                    is_own,
                    turn.session_id(),
                    role
                ]))))
            }
            "allow" => Ok(Some(ToolDecision::Proceed(None))),
            "fail" => Err(Error::invalid_input("the guard fails")),
            _ => Ok(None),
        }
    }

    async fn after_tool_call(&self, result: &ToolOutcome) -> Option<Value> {
        match &result.result {
            Ok(Value::String(text)) => Some(format!("{text}!").into()),
            _ => None,
        }
    }

    async fn admit_message(
        &self,
        message: &Envelope,
        turn: &TurnSnapshot,
        inbound: &Inbound,
    ) -> Option<Admission> {
        let decision = AdmissionDecision::from_name(&message.content())?;
        let role = inbound.sender().role.name();
        Some(
            Admission::new(decision).with_reason(format!("{} running, {role}", turn.running_count)),
        )
    }

    async fn provide_model_options(&self) -> ModelOptions {
        let choice = ModelOption {
            id: "probe:one".to_owned(),
            label: Some("One".to_owned()),
        };
        ModelOptions {
            choices: vec![choice],
            current: None,
        }
    }
}
