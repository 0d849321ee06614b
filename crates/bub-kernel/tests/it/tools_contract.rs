//! The tools that `#[tool]` generates, the conversion of arguments, and the tools of a framework.

use std::sync::Arc;

use bub_kernel::{
    BoxError, Envelope, Error, ErrorKind, Framework, Result, State, Tool, ToolContext,
    ToolExposure, Turn, tool, tool::ToolArgument,
};
use serde_json::{Map, Value, json};

use crate::support::FakePlugin;

/// Reads a text file.
/// Whole, or some lines of it.
///
/// - not for pictures
#[tool(crate = bub_kernel, name = "fs.read", read_only)]
async fn fs_read(
    context: &ToolContext,
    /// The file,
    /// absolute or relative.
    path: String,
    #[default(0)] offset: i64,
    limit: Option<u64>,
    #[default(vec!["x".to_owned()])] kinds: Vec<String>,
) -> Result<String> {
    if path == "missing" {
        return Err(Error::not_found("no such file"));
    }
    Ok(format!(
        "{} {path} {offset} {limit:?} {kinds:?}",
        context.turn.session_id()
    ))
}

/// A synchronous tool without a `Result`.
#[tool(crate = bub_kernel, command_only)]
fn where_am_i(context: ToolContext, #[default("nowhere")] place: String) -> Map<String, Value> {
    assert!(tokio::runtime::Handle::try_current().is_ok());
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    json!({"place": place, "run": context.turn.session_id(), "thread": thread})
        .as_object()
        .cloned()
        .unwrap()
}

/// Fails with an error of another type.
#[tool(crate = bub_kernel)]
async fn fails(how: String) -> Result<(), BoxError> {
    match how.as_str() {
        "panic" => panic!("boom"),
        "own" => Err(Error::config("own").into()),
        _ => Err(how.into()),
    }
}

/// Takes no arguments.
#[tool(crate = bub_kernel)]
async fn nothing() {}

fn context() -> ToolContext {
    let message = Envelope::from_text("hi").with("session_id", "r1");
    let framework = Framework::builder().build();
    ToolContext::new(Turn::detached(&framework, message, State::new()))
}

async fn call(tool: &dyn Tool, arguments: Value) -> Result<Value> {
    tool.call(arguments.as_object().cloned().unwrap(), context())
        .await
}

// H-110, W-21
#[test]
fn name_description_and_schema_come_from_the_function() {
    let spec = fs_read().spec().clone();
    assert_eq!(
        (spec.name.as_str(), spec.model_name().as_str()),
        ("fs.read", "fs_read")
    );
    assert_eq!(
        spec.description,
        "Reads a text file. Whole, or some lines of it.\n- not for pictures"
    );
    assert!(spec.exposure == ToolExposure::Auto && spec.read_only);
    let schema = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, absolute or relative."},
            "offset": {"type": "integer", "default": 0},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "kinds": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
        },
        "required": ["path"],
    });
    assert_eq!(spec.parameters.to_string(), schema.to_string());
    assert_eq!(
        spec.parameters(),
        [
            ("path", true),
            ("offset", false),
            ("limit", false),
            ("kinds", false)
        ]
    );

    let spec = where_am_i().spec().clone();
    assert_eq!(spec.name, "where_am_i");
    assert!(spec.exposure == ToolExposure::Command && !spec.read_only);
    assert_eq!(
        nothing().spec().parameters,
        json!({"type": "object", "properties": {}})
    );
}

// H-111
#[tokio::test]
async fn arguments_are_coerced_and_defaults_filled_in() {
    let cases = [
        (json!({"path": "a"}), r#"r1 a 0 None ["x"]"#),
        (
            json!({"path": 5, "offset": "5", "limit": "7"}),
            r#"r1 5 5 Some(7) ["x"]"#,
        ),
        (
            json!({"path": "a", "offset": -3.0, "limit": null, "kinds": "m"}),
            r#"r1 a -3 None ["m"]"#,
        ),
        (
            json!({"path": "a", "offset": null, "kinds": "[\"m\", \"n\"]"}),
            r#"r1 a 0 None ["m", "n"]"#,
        ),
        (json!({"path": "a", "kinds": []}), "r1 a 0 None []"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(
            call(&fs_read(), arguments.clone()).await.unwrap(),
            expected,
            "{arguments}"
        );
    }
}

fn read<T: ToolArgument>(value: Value) -> Result<T, String> {
    T::from_value(value)
}

// H-111
#[test]
fn each_type_takes_what_can_only_mean_one_thing() {
    for yes in [
        json!(true),
        json!("TRUE"),
        json!(" yes "),
        json!("on"),
        json!(1),
        json!("1"),
    ] {
        assert_eq!(read::<bool>(yes.clone()), Ok(true), "{yes}");
    }
    for no in [
        json!(false),
        json!("False"),
        json!("no"),
        json!("off"),
        json!(0),
        json!("0"),
    ] {
        assert_eq!(read::<bool>(no.clone()), Ok(false), "{no}");
    }
    for (value, number) in [
        (json!(" 12 "), 12),
        (json!("+1"), 1),
        (json!(2.0), 2),
        (json!("3.0"), 3),
    ] {
        assert_eq!(read::<i64>(value.clone()), Ok(number), "{value}");
    }
    assert_eq!(read::<u64>(json!(u64::MAX)), Ok(u64::MAX));
    assert_eq!(read::<f64>(json!("1.5")), Ok(1.5));
    assert_eq!(
        read::<Map<String, Value>>(json!("{\"a\": 1}"))
            .unwrap()
            .get("a"),
        Some(&json!(1))
    );
    assert_eq!(read::<Value>(json!([1])), Ok(json!([1])));
    assert_eq!(read::<Vec<i64>>(json!("[1, \"2\"]")), Ok(vec![1, 2]));
    assert_eq!(read::<Vec<i64>>(json!(3)), Ok(vec![3]));

    let wrong = [
        (
            read::<bool>(json!("maybe")).err(),
            r#"expected true or false, got "maybe""#,
        ),
        (
            read::<i64>(json!(1.5)).map(|_| true).err(),
            "expected a whole number, got 1.5",
        ),
        (
            read::<i64>(json!(true)).map(|_| true).err(),
            "expected a whole number, got true",
        ),
        (
            read::<u16>(json!(-1)).map(|_| true).err(),
            "expected a number from 0 to 65535, got -1",
        ),
        (
            read::<f64>(json!("NaN")).map(|_| true).err(),
            r#"expected a number, got "NaN""#,
        ),
        (
            read::<String>(json!({"a": 1})).map(|_| true).err(),
            r#"expected a string, got {"a":1}"#,
        ),
        (
            read::<Vec<i64>>(json!([1, "x"])).map(|_| true).err(),
            r#"item 1: expected a whole number, got "x""#,
        ),
    ];
    for (error, expected) in wrong {
        assert_eq!(error.as_deref(), Some(expected));
    }
    let long = read::<i64>(json!("é".repeat(1000))).unwrap_err();
    assert!(long.ends_with('…') && long.chars().count() < 130, "{long}");
}

// H-88, H-111
#[tokio::test]
async fn everything_wrong_with_the_arguments_is_said_at_once() {
    let error = call(&fs_read(), json!({"offset": "x", "file": "a", "lines": 3}))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let problems = [
        "argument 'path' is missing",
        "argument 'offset': expected a whole number, got \"x\"",
        "unknown argument 'file' of fs.read; it takes path, offset, limit, kinds",
        "unknown argument 'lines' of fs.read; it takes path, offset, limit, kinds",
    ];
    assert_eq!(error.details().get("errors"), Some(&json!(problems)));
    let message = format!(
        "Tool 'fs.read' argument validation failed. {}",
        problems.join("; ")
    );
    assert_eq!(error.message(), message);

    let error = call(&nothing(), json!({"a": 1})).await.unwrap_err();
    assert!(
        error
            .message()
            .ends_with("unknown argument 'a' of nothing; it takes no arguments"),
        "{error}"
    );
    let error = call(&fails(), json!({"how": null})).await.unwrap_err();
    assert!(
        error
            .message()
            .ends_with("argument 'how': expected a string, got null"),
        "{error}"
    );
}

#[tokio::test]
async fn results_and_errors_keep_their_shape() {
    assert_eq!(call(&nothing(), json!({})).await.unwrap(), Value::Null);
    let result = call(&where_am_i(), json!({})).await.unwrap();
    assert_eq!(
        (&result["place"], &result["run"]),
        (&json!("nowhere"), &json!("r1"))
    );
    assert_ne!(
        result["thread"],
        json!(std::thread::current().name()),
        "not on the thread that waits"
    );
    assert_eq!(
        call(&fs_read(), json!({"path": "missing"}))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        call(&fails(), json!({"how": "own"}))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Config
    );
    assert_eq!(
        call(&fails(), json!({"how": "so"}))
            .await
            .unwrap_err()
            .message(),
        "so"
    );
}

/// Panics on a blocking thread.
#[tool(crate = bub_kernel)]
fn breaks() -> String {
    panic!("boom")
}

// W-30
#[tokio::test]
async fn a_synchronous_tool_that_panics_is_an_error() {
    let error = call(&breaks(), json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tool);
}

/// Another tool with the same name.
#[tool(crate = bub_kernel, name = "fs.read")]
async fn other_read() -> String {
    "other".to_owned()
}

/// A tool whose name looks the same to the model.
#[tool(crate = bub_kernel, name = "fs_read")]
async fn third_read() -> String {
    "third".to_owned()
}

fn descriptions(tools: &[Arc<dyn Tool>]) -> Vec<String> {
    tools
        .iter()
        .map(|tool| tool.spec().description.clone())
        .collect()
}

// H-110
#[test]
fn a_plugin_can_put_its_tools_before_a_tool_of_another_plugin() {
    let framework = Framework::builder()
        .plugin_with("builtin", |context| {
            context.add_tool(fs_read());
            context.add_tool(nothing());
            FakePlugin::new()
        })
        .plugin_with("later", |context| {
            let tools: [Arc<dyn Tool>; 2] = [Arc::new(fails()), Arc::new(other_read())];
            context.add_tools_before("nothing", tools);
            context.add_tools_before("unknown", [Arc::new(breaks()) as Arc<dyn Tool>]);
            FakePlugin::new()
        })
        .plugin_with("broken", |context| {
            context.add_tools_before("fs_read", [Arc::new(third_read()) as Arc<dyn Tool>]);
            Err::<FakePlugin, _>(Error::config("no token"))
        })
        .build();
    assert_eq!(
        descriptions(framework.tools()),
        [
            "Another tool with the same name.",
            "Fails with an error of another type.",
            "Takes no arguments.",
            "Panics on a blocking thread."
        ]
    );
}

// H-110
#[test]
fn tools_are_in_the_order_of_registration_and_later_ones_replace_in_place() {
    let builder = || {
        Framework::builder().plugin_with("builtin", |context| {
            context.add_tool(fs_read());
            context.add_tool(nothing());
            Ok::<_, BoxError>(FakePlugin::new())
        })
    };
    let names = |framework: &Framework| -> Vec<_> {
        framework
            .tools()
            .iter()
            .map(|tool| tool.spec().name.clone())
            .collect()
    };
    assert_eq!(
        names(&builder().tool(fails()).build()),
        ["fs.read", "nothing", "fails"]
    );
    let replaced = builder()
        .plugin_with("later", |context| {
            context.add_tool(other_read());
            context.add_tool(fails());
            Ok::<_, BoxError>(FakePlugin::new())
        })
        .build();
    assert_eq!(names(&replaced), ["fs.read", "nothing", "fails"]);
    assert_eq!(
        descriptions(replaced.tools())[0],
        "Another tool with the same name."
    );
    let third = builder().tool(third_read()).build();
    assert_eq!(names(&third), ["fs_read", "nothing"]);
}

// H-31
#[test]
fn a_plugin_that_cannot_be_made_leaves_no_tools() {
    let framework = Framework::builder()
        .plugin_with("broken", |context| {
            context.add_tool(fails());
            Err::<FakePlugin, _>(Error::config("no token"))
        })
        .plugin_with("panicking", |context| -> Result<FakePlugin> {
            context.add_tool(fails());
            panic!("no")
        })
        .plugin_with("fine", |context| {
            context.add_tool(nothing());
            Ok::<_, BoxError>(FakePlugin::new())
        })
        .build();
    assert_eq!(descriptions(framework.tools()), ["Takes no arguments."]);
}

// L7: the policy is evaluated for the converted arguments, which do not depend on their spelling.
#[test]
fn arguments_have_one_spelling_before_the_call() {
    /// Takes arguments of all types.
    #[tool(crate = bub_kernel)]
    async fn all(
        flag: bool,
        #[default(7)] whole: u32,
        part: Option<f64>,
        text: Option<String>,
        list: Option<Vec<bool>>,
        map: Option<Map<String, Value>>,
        any: Option<Value>,
    ) {
        let _ = (flag, whole, part, text, list, map, any);
    }

    for (input, read) in [
        (json!({"flag": "yes"}), json!({"flag": true})),
        (json!({"flag": 1}), json!({"flag": true})),
        (json!({"flag": " OFF "}), json!({"flag": false})),
        (
            json!({"whole": "+5", "part": "5.0", "text": 5}),
            json!({"whole": 5, "part": 5, "text": "5"}),
        ),
        (
            json!({"part": "0.5", "list": "yes"}),
            json!({"part": 0.5, "list": [true]}),
        ),
        (
            json!({"list": "[1, \"no\"]", "map": "{\"a\": 1}"}),
            json!({"list": [true, false], "map": {"a": 1}}),
        ),
        // Null is treated as missing for optional arguments.
        (
            json!({"flag": null, "whole": null, "text": null, "any": null}),
            json!({"flag": null}),
        ),
        // Invalid and unknown arguments are left for the call to report.
        (
            json!({"flag": "maybe", "other": "yes"}),
            json!({"flag": "maybe", "other": "yes"}),
        ),
    ] {
        let case = input.to_string();
        assert_eq!(
            Value::Object(
                all()
                    .normalize_arguments(input.as_object().cloned().unwrap())
                    .unwrap()
            ),
            read,
            "{case}"
        );
    }
}

/// Counts words
#[tool(crate = bub_kernel, direct, deferred, render = render_count, output = count_schema)]
async fn count_words(
    #[alias("words")] text: String,
    /// Only words with so few letters
    max: Option<u32>,
) -> Value {
    let max = max.map_or(usize::MAX, |max| max as usize);
    let words = text.split(' ').filter(|word| word.len() <= max);
    json!({"count": words.count()})
}

fn render_count(result: &Value) -> Option<String> {
    Some(format!("{} words", result.get("count")?))
}

fn count_schema() -> Value {
    json!({"type": "object", "properties": {"count": {"type": "integer"}}})
}

// P-69, P-76, P-78
#[tokio::test]
async fn a_tool_has_an_exposure_a_renderer_and_other_names_of_arguments() {
    let tool = count_words();
    let spec = tool.spec();
    assert_eq!((spec.exposure, spec.deferred), (ToolExposure::Direct, true));
    assert_eq!(spec.output_schema, Some(count_schema()));
    assert_eq!("code".parse(), Ok(ToolExposure::Code));
    assert!("anything".parse::<ToolExposure>().is_err());
    let result = call(&tool, json!({"words": "a bc", "max": 1}))
        .await
        .unwrap();
    assert_eq!(result, json!({"count": 1}));
    assert_eq!(tool.render(&result).unwrap(), "1 words");
    // A hook may have replaced the result.
    assert_eq!(tool.render(&json!("none")), None);
    let arguments = json!({"words": "a"}).as_object().cloned().unwrap();
    let normalized = tool.normalize_arguments(arguments).unwrap();
    assert_eq!(Value::from(normalized), json!({"text": "a"}));
    let both = call(&tool, json!({"words": "a", "text": "b"})).await;
    assert!(
        both.unwrap_err()
            .message()
            .contains("unknown argument 'words'")
    );
}
