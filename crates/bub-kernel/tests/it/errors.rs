//! The error type: kinds, text and map form.

use std::time::Duration;

use bub_kernel::{BoxError, Error, ErrorKind};
use serde_json::json;

#[derive(Debug, thiserror::Error)]
#[error("request failed")]
struct Outer(#[source] std::io::Error);

// H-46
#[test]
fn kinds_have_the_names_of_the_original() {
    let kinds = [
        (ErrorKind::InvalidInput, "invalid_input"),
        (ErrorKind::Config, "config"),
        (ErrorKind::Provider, "provider"),
        (ErrorKind::Tool, "tool"),
        (ErrorKind::Temporary, "temporary"),
        (ErrorKind::NotFound, "not_found"),
        (ErrorKind::Cancelled, "cancelled"),
        (ErrorKind::Unknown, "unknown"),
    ];
    for (kind, name) in kinds {
        assert_eq!(kind.name(), name);
        assert_eq!(ErrorKind::from_name(name), kind);
        assert_eq!(Error::new(kind, "m").to_string(), format!("[{name}] m"));
    }
    assert_eq!(ErrorKind::from_name("rate_limit"), ErrorKind::Unknown);
}

// H-46
#[test]
fn the_map_form_has_details_only_when_there_are_some() {
    let plain = Error::config("no key");
    assert_eq!(
        plain.to_value(),
        json!({"kind": "config", "message": "no key"})
    );
    let detailed = plain.with_detail("env", "KEY");
    assert_eq!(
        detailed.to_value(),
        json!({"kind": "config", "message": "no key", "details": {"env": "KEY"}})
    );
    assert_eq!(
        Error::from_value(&detailed.to_value()).to_value(),
        detailed.to_value()
    );
}

#[test]
fn an_error_of_another_type_keeps_its_text_its_type_and_its_cause() {
    let cause = std::io::Error::other("cable is loose");
    let error = Error::from_boxed(Box::new(Outer(cause)));
    assert_eq!(error.to_string(), "request failed");
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.downcast_ref::<Outer>().is_some());
    let boxed = BoxError::from(error);
    assert_eq!(boxed.source().unwrap().to_string(), "cable is loose");
}

#[test]
fn an_own_error_is_not_wrapped_again() {
    let boxed = BoxError::from(Error::not_found("gone"));
    assert_eq!(Error::from_boxed(boxed).to_string(), "[not_found] gone");
}

#[test]
fn editing_a_clone_leaves_the_original_alone() {
    let original = Error::unknown("m");
    let edited = original
        .clone()
        .with_detail("a", 1)
        .with_retry_after(Duration::from_secs(2));
    assert!(original.details().is_empty());
    assert_eq!(original.retry_after(), None);
    assert_eq!(edited.retry_after(), Some(Duration::from_secs(2)));
}

#[test]
fn any_error_type_becomes_one_with_a_question_mark() {
    fn read() -> bub_kernel::Result<u32> {
        Ok("seven".parse::<u32>()?)
    }
    let error = read().unwrap_err();
    assert_eq!(error.to_string(), "invalid digit found in string");
    assert!(error.downcast_ref::<std::num::ParseIntError>().is_some());
}

#[test]
fn an_error_that_cannot_be_put_into_words_is_still_one() {
    #[derive(Debug)]
    struct PanickingError;

    impl std::fmt::Display for PanickingError {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("no text")
        }
    }

    impl std::error::Error for PanickingError {}

    assert_eq!(
        Error::from(PanickingError).to_string(),
        "unknown error: its `Display` panicked"
    );
}
