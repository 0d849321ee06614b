//! The prompt of the model stage.

use bub_kernel::{
    Envelope, Prompt,
    hooks::point::{BuildPrompt, RunModel},
};
use serde_json::json;

use crate::support::{FakePlugin, framework, hi, none, some, turn};

async fn build_prompt(plugins: Vec<FakePlugin>) -> Prompt {
    turn(&framework(plugins)).await.unwrap().prompt
}

// S-7
#[tokio::test]
async fn the_first_opinion_is_the_prompt() {
    let plugins = vec![
        FakePlugin::new().on::<BuildPrompt>(|_| panic!("not asked")),
        FakePlugin::new().on::<BuildPrompt>(|_| some("chosen")),
        FakePlugin::new().on::<BuildPrompt>(|_| none()),
    ];
    assert_eq!(build_prompt(plugins).await, Prompt::from("chosen"));
}

// S-7
#[tokio::test]
async fn a_prompt_may_be_content_parts() {
    let parts = vec![
        json!({"type": "text", "text": "look"}),
        json!({"type": "image_url", "image_url": {}}),
    ];
    let expected = Prompt::Parts(parts.clone());
    let plugin = FakePlugin::new().on_async::<BuildPrompt>(move |_| some(parts.clone()));
    assert_eq!(build_prompt(vec![plugin]).await, expected);
}

// S-8
#[tokio::test]
async fn without_an_opinion_the_prompt_is_the_content() {
    assert_eq!(build_prompt(vec![]).await, Prompt::from("hi"));
    assert_eq!(
        build_prompt(vec![FakePlugin::new().on::<BuildPrompt>(|_| none())]).await,
        Prompt::from("hi")
    );
}

// S-8
#[tokio::test]
async fn an_empty_prompt_becomes_the_content_and_asks_nobody_else() {
    for empty in [Prompt::from(""), Prompt::Parts(vec![])] {
        let plugins = vec![
            FakePlugin::new().on::<BuildPrompt>(|_| panic!("not asked")),
            FakePlugin::new().on::<BuildPrompt>(move |_| some(empty.clone())),
        ];
        assert_eq!(build_prompt(plugins).await, Prompt::from("hi"));
    }
}

// S-8
#[tokio::test]
async fn content_that_is_not_text_is_made_text() {
    for (content, expected) in [
        (json!(null), ""),
        (json!(42), "42"),
        (json!({"a": 1}), r#"{"a":1}"#),
    ] {
        let message = Envelope::new().with("content", content);
        let result = framework([]).process_inbound(message).await.unwrap();
        assert_eq!(result.prompt, Prompt::from(expected));
    }
}

#[tokio::test]
async fn the_prompt_reaches_the_model() {
    let plugin = FakePlugin::new()
        .on::<BuildPrompt>(|call| some(format!("{}!", call.args.message.content())))
        .on::<RunModel>(|call| some(call.args.prompt.text().to_uppercase()));
    let result = framework([plugin]).process_inbound(hi()).await.unwrap();
    assert_eq!(result.model_output, "HI!");
}

#[test]
fn the_text_of_parts_is_their_text_parts_on_lines() {
    let prompt = Prompt::Parts(vec![
        json!({"type": "text", "text": "one"}),
        json!({"type": "image_url", "image_url": {"url": "x"}}),
        json!({"type": "text", "text": "two"}),
        json!({"type": "text"}),
        json!("odd"),
    ]);
    assert_eq!(prompt.text(), "one\ntwo");
    assert_eq!(prompt.as_text(), None);
    assert_eq!(Prompt::from("plain").as_text(), Some("plain"));
}

#[test]
fn a_prompt_is_a_string_or_a_list_in_json() {
    for value in [json!("text"), json!([{"type": "text", "text": "x"}])] {
        let prompt: Prompt = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(prompt).unwrap(), value);
    }
}

// P-47: white space before the comma does not matter.
#[test]
fn a_comma_before_the_first_word_is_a_command_in_a_prompt_or_an_envelope() {
    for (text, expected) in [
        (",help", true),
        (" ,help", true),
        ("\n\t,help", true),
        (",", true),
        ("", false),
        ("a,b", false),
        ("a ,b", false),
    ] {
        assert_eq!(Prompt::from(text).is_command(), expected, "{text:?}");
        assert_eq!(Envelope::from_text(text).is_command(), expected, "{text:?}");
    }
    let parts = vec![json!({"type": "text", "text": ",help"})];
    assert!(!Prompt::Parts(parts).is_command());
}
