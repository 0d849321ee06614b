//! The error type: kinds, text and map forms.

use std::{error::Error as _, time::Duration};

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
    assert_eq!(plain.to_value(), json!({"kind": "config", "message": "no key"}));
    let detailed = plain.with_detail("env", "KEY");
    assert_eq!(
        detailed.to_value(),
        json!({"kind": "config", "message": "no key", "details": {"env": "KEY"}})
    );
    assert_eq!(Error::from_value(&detailed.to_value()).to_value(), detailed.to_value());
}

#[test]
fn an_error_of_another_type_keeps_its_text_its_type_and_its_cause() {
    let cause = std::io::Error::other("cable is loose");
    let error = Error::from_boxed(Box::new(Outer(cause)));
    assert_eq!(error.to_string(), "request failed");
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.downcast_ref::<Outer>().is_some());
    assert_eq!(error.source().unwrap().to_string(), "cable is loose");
}

#[test]
fn an_own_error_is_not_wrapped_again() {
    let boxed: BoxError = Box::new(Error::not_found("gone"));
    assert_eq!(Error::from_boxed(boxed).to_string(), "[not_found] gone");
}

#[test]
fn editing_a_clone_leaves_the_original_alone() {
    let original = Error::unknown("m");
    let edited = original.clone().with_detail("a", 1).with_retry_after(Duration::from_secs(2));
    assert!(original.details().is_empty());
    assert_eq!(original.retry_after(), None);
    assert_eq!(edited.retry_after(), Some(Duration::from_secs(2)));
}
