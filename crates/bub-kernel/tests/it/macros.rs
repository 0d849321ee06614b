//! The methods that `#[hooks]` accepts.

use std::fmt::Display;

use bub_kernel::{
    BoxError, Envelope, Error, Fields, Framework, Prompt, Result, State, StatePatch, hooks,
    hooks::point::{BuildPrompt, ResolveSession},
};
use serde_json::{Value, json};

use crate::support::{failing_turn, turn};

fn framework_with(plugin: impl bub_kernel::Plugin) -> Framework {
    Framework::builder().plugin("only", plugin).build()
}

struct ManyHooksPlugin;

#[hooks(crate = bub_kernel)]
impl ManyHooksPlugin {
    // No arguments, plain return value.
    fn resolve_session(&self) -> String {
        "plain".to_owned()
    }

    // All arguments in another order, asynchronous, `Result` of an `Option`.
    async fn build_prompt(
        &self,
        state: &State,
        message: &Envelope,
        session_id: &str,
    ) -> Result<Option<Prompt>, std::fmt::Error> {
        let workspace = state.get_str("_runtime_workspace").is_some();
        Ok(Some(Prompt::from(format!(
            "{session_id} {} {workspace}",
            message.content()
        ))))
    }

    // A more convenient return type.
    fn load_state(&self) -> Value {
        json!({"loaded": true})
    }

    // No return value.
    fn save_state(&self, state: &State) {
        state.set("saved", true);
    }

    /// A method with a doc comment and an attribute.
    #[allow(clippy::unused_async, reason = "tests an asynchronous method")]
    async fn run_model(&self, prompt: &Prompt) -> Option<String> {
        Some(prompt.text())
    }

    // One envelope instead of a list.
    fn render_outbound(&self, model_output: &str) -> Envelope {
        Envelope::from_text(format!("<{model_output}>"))
    }

    #[cfg(any())]
    fn dispatch_outbound(&self) -> bool {
        panic!("configured out")
    }
}

// S-48
#[tokio::test]
async fn methods_take_what_they_name_and_return_what_is_handy() {
    let framework = framework_with(ManyHooksPlugin);
    let result = turn(&framework).await.unwrap();
    assert_eq!(result.session_id, "plain");
    assert_eq!(result.model_output, "plain hi true");
    assert_eq!(result.outbounds[0].content(), "<plain hi true>");
    assert_eq!(result.state.get("loaded"), Some(json!(true)));
    assert_eq!(result.state.get("saved"), Some(json!(true)));
    assert!(framework.hooks().is_implemented::<BuildPrompt>());
    let hooks: Vec<_> = framework
        .hooks()
        .implemented_hooks()
        .iter()
        .map(|(spec, _)| spec.name)
        .collect();
    let expected = [
        "build_prompt",
        "load_state",
        "render_outbound",
        "resolve_session",
        "run_model",
        "save_state",
    ];
    assert_eq!(hooks, expected);
}

/// Generates one plugin per return type, like a plugin author's own macro.
macro_rules! returning {
    ($hook:ident: $($ty:ty = $value:expr;)*) => {
        vec![$({
            struct ReturnPlugin;
            #[hooks(crate = bub_kernel)]
            impl ReturnPlugin {
                fn $hook(&self) -> $ty {
                    $value
                }
            }
            framework_with(ReturnPlugin)
        }),*]
    };
}

#[tokio::test]
async fn every_shape_of_a_result_is_accepted() {
    let frameworks = returning! {
        resolve_session:
        String = "x".into();
        Option<String> = Some("x".into());
        Result<String> = Ok("x".into());
        Result<Option<String>> = Ok(Some("x".into()));
        &'static str = "x";
        Option<&'static str> = Some("x");
        Result<&'static str, BoxError> = Ok("x");
        Result<Option<&'static str>, Error> = Ok(Some("x"));
    };
    for framework in frameworks {
        assert_eq!(turn(&framework).await.unwrap().session_id, "x");
    }
}

#[tokio::test]
async fn every_shape_of_a_state_is_accepted() {
    let frameworks = returning! {
        load_state:
        StatePatch = StatePatch::new().with("a", 1);
        Option<Fields> = Some(Fields::new().with("a", 1));
        Result<Value> = Ok(json!({"a": 1}));
        Result<Option<Value>, BoxError> = Ok(Some(json!({"a": 1})));
    };
    for framework in frameworks {
        assert_eq!(
            turn(&framework).await.unwrap().state.get("a"),
            Some(json!(1))
        );
    }
}

#[tokio::test]
async fn every_shape_of_a_prompt_is_accepted() {
    let frameworks = returning! {
        build_prompt:
        Prompt = Prompt::from("p");
        String = "p".to_owned();
        Option<&'static str> = Some("p");
        Result<Option<String>, BoxError> = Ok(Some("p".to_owned()));
    };
    for framework in frameworks {
        assert_eq!(turn(&framework).await.unwrap().prompt, Prompt::from("p"));
    }
}

#[tokio::test]
async fn every_shape_of_nothing_and_of_failure_is_accepted() {
    let fine = returning! {
        save_state:
        () = ();
        Option<()> = None;
        Result<()> = Ok(());
        Result<Option<()>, BoxError> = Ok(None);
    };
    for framework in fine {
        turn(&framework).await.unwrap();
    }
    let failing = returning! {
        save_state:
        Result<()> = Err(Error::unknown("no"));
        Result<(), BoxError> = Err("no".into());
        Result<Option<()>, std::fmt::Error> = Err(std::fmt::Error);
    };
    for framework in failing {
        failing_turn(&framework).await;
    }
}

// Identifiers of the macro's caller and of the macro itself must resolve.
macro_rules! asking {
    ($plugin:ident, $hook:ident, $argument:ident: $ty:ty) => {
        struct $plugin;
        #[hooks(crate = bub_kernel)]
        impl $plugin {
            async fn $hook(&self, $argument: $ty) -> Option<String> {
                Some($argument.content().into_owned())
            }
        }
    };
}

#[tokio::test]
async fn a_plugin_may_be_written_by_a_macro() {
    asking!(Asking, resolve_session, message: &Envelope);
    assert_eq!(
        turn(&framework_with(Asking)).await.unwrap().session_id,
        "hi"
    );
}

struct Generic<T>(T);

#[hooks(crate = bub_kernel)]
impl<T> Generic<T>
where
    T: Display + Send + Sync + 'static,
{
    fn resolve_session(&self) -> String {
        self.0.to_string()
    }

    async fn run_model(&self, prompt: &Prompt) -> String {
        format!("{} {}", prompt.text(), self.0)
    }
}

#[tokio::test]
async fn a_plugin_may_be_generic() {
    let result = turn(&framework_with(Generic(7))).await.unwrap();
    assert_eq!(
        (result.session_id.as_str(), result.model_output.as_str()),
        ("7", "hi 7")
    );
}

#[test]
fn a_block_without_methods_is_a_plugin_without_hooks() {
    struct Empty;
    #[hooks(crate = bub_kernel)]
    impl Empty {}
    let framework = framework_with(Empty);
    assert!(framework.hooks().implemented_hooks().is_empty());
    assert!(!framework.hooks().is_implemented::<ResolveSession>());
}
