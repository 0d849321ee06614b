//! Errors that the recordings do not contain: proxies, web pages, and formats of other servers.

use RecoveryAction::{GiveUp, NextModel, Reauthenticate, Retry, ShrinkContext};

use super::*;

struct ClassifyCase(Option<u16>, &'static str, RecoveryAction);

const ROWS: &[ClassifyCase] = &[
    // W-10: the two errors that the Python version classifies incorrectly.
    ClassifyCase(
        Some(429),
        r#"{"error":{"code":"429","message":"Requests have exceeded token rate limit of your pricing tier."}}"#,
        Retry,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"exceed context limit: 199000 + 16384 > 200000"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"token rate limit exceeded"}}"#,
        Retry,
    ),
    ClassifyCase(
        None,
        r#"{"error":{"message":"exceeded token rate limit"}}"#,
        Retry,
    ),
    // Web pages of proxies.
    ClassifyCase(
        Some(413),
        "<html>\r\n<head><title>413 Request Entity Too Large</title></head></html>",
        ShrinkContext,
    ),
    ClassifyCase(
        Some(502),
        "<html><head><title>502 Bad Gateway</title></head></html>",
        Retry,
    ),
    ClassifyCase(
        Some(520),
        "<!DOCTYPE html><title>Web server is returning an unknown error</title>",
        Retry,
    ),
    ClassifyCase(
        Some(403),
        "<!doctype html><title>Attention Required!</title>",
        NextModel,
    ),
    ClassifyCase(
        Some(404),
        "<html><title>404 Not Found</title></html>",
        NextModel,
    ),
    ClassifyCase(
        Some(503),
        "upstream connect error or disconnect/reset before headers",
        Retry,
    ),
    ClassifyCase(Some(504), "", Retry),
    ClassifyCase(Some(400), "", GiveUp),
    ClassifyCase(Some(302), "", NextModel),
    ClassifyCase(Some(407), "", GiveUp),
    // A single request above the limit per minute, and a limit per minute that is used up.
    ClassifyCase(
        Some(429),
        r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 10000, Requested 17000.","type":"tokens","code":"rate_limit_exceeded"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(429),
        r#"{"error":{"message":"Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 9000, Requested 2000. Please try again in 6s.","code":"rate_limit_exceeded"}}"#,
        Retry,
    ),
    // Errors inside errors.
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"code\":\"context_length_exceeded\",\"message\":\"too long\"}}"}}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(502),
        r#"{"error":{"message":"{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}"}}"#,
        Retry,
    ),
    ClassifyCase(
        None,
        r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"slow"}}}"#,
        Retry,
    ),
    ClassifyCase(
        None,
        r#"{"type":"error","code":"context_length_exceeded","message":"x"}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        None,
        r#"{"error":{"message":"x","status_code":401}}"#,
        Reauthenticate,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"code":"content_filter","innererror":{"code":"ResponsibleAIPolicyViolation"},"message":"filtered"}}"#,
        NextModel,
    ),
    ClassifyCase(
        Some(400),
        r#"{"__type":"com.amazon.coral#ThrottlingException","message":"Too many tokens, please wait before trying again."}"#,
        Retry,
    ),
    ClassifyCase(
        Some(422),
        r#"{"detail":[{"type":"missing","msg":"Field required"}]}"#,
        GiveUp,
    ),
    ClassifyCase(Some(401), r#""no""#, Reauthenticate),
    // Problems of the account, not of the key; problems of the model, not of the request.
    ClassifyCase(
        Some(400),
        r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#,
        NextModel,
    ),
    ClassifyCase(
        Some(402),
        r#"{"error":{"message":"Insufficient Balance"}}"#,
        NextModel,
    ),
    ClassifyCase(
        Some(403),
        r#"{"error":{"message":"Country, region, or territory not supported","code":"unsupported_country_region_territory"}}"#,
        NextModel,
    ),
    ClassifyCase(
        Some(429),
        r#"{"error":{"message":"Resource exhausted","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDayPerProject"}]}]}}"#,
        NextModel,
    ),
    ClassifyCase(
        Some(404),
        r#"{"error":"model 'llama9' not found, try pulling it first"}"#,
        NextModel,
    ),
    // Context overflows, as other servers describe them.
    ClassifyCase(
        Some(400),
        r#"{"message":"Requested tokens (5000) exceed context window of 2048"}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"object":"error","message":"Prompt contains 34987 tokens, too large for model with 32768 maximum context length"}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(413),
        r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large. Max size: 8000 tokens."}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(500),
        r#"{"error":"the input length exceeds the context length"}"#,
        ShrinkContext,
    ),
    // Local servers that must keep the start of a conversation.
    ClassifyCase(
        Some(400),
        r#"{"error":"Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input"}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        None,
        r#"{"error":{"message":"The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":"Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        None,
        r#"{"error":"Reached context length of 4096 tokens with model (arch: qwen2) that does not currently support mid-generation context overflow."}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)","type":"invalid_request_error"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"model max length exceeded, max length:8192","type":"invalid_request_error"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"Input token length too long","type":"invalid_request_error"}}"#,
        ShrinkContext,
    ),
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"total message size 2113433 exceeds limit 2097152","type":"invalid_request_error"}}"#,
        ShrinkContext,
    ),
    // A limit on the answer is not an overflow of the conversation.
    ClassifyCase(
        Some(400),
        r#"{"error":{"message":"max_tokens is too large: 100000. This model supports at most 16384 completion tokens"}}"#,
        GiveUp,
    ),
    ClassifyCase(None, r#"{"error":{"message":"something"}}"#, Retry),
];

#[test]
fn errors_are_classified_by_what_to_do() {
    for &ClassifyCase(status, body, action) in ROWS {
        let error = classify(status, None, body.as_bytes());
        assert_eq!(error.action, action, "{status:?} {body} → {error:?}");
        assert!(!error.message.contains(['<', '\n']), "{error}");
    }
}

// H-89, W-10: every phrase of the Python version is recognized, unless a status or code takes precedence.
#[test]
fn the_phrases_of_the_python_version_mean_an_overflow() {
    for text in [
        "This model's maximum context length is 8192 tokens",
        "the context window of the model is exceeded",
        "input exceeds the maximum allowed context",
        "Your request exceeded model token limit: 8192",
        "input exceeds the token limit of this model",
        "PROMPT IS TOO LONG: 9 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ] {
        let body = serde_json::json!({"error": {"message": text}}).to_string();
        for status in [Some(400), None] {
            let error = classify(status, None, body.as_bytes());
            assert_eq!(error.action, ShrinkContext, "{status:?} {text}");
        }
        let error = classify(Some(401), None, body.as_bytes());
        assert_eq!(
            error.action, Reauthenticate,
            "the status comes first: {text}"
        );
    }
}

#[test]
fn the_message_is_the_one_that_helps() {
    let show = |status, body: &str| classify(Some(status), None, body.as_bytes()).to_string();
    assert_eq!(
        show(
            429,
            r#"{"error":{"code":429,"message":"Provider returned error","metadata":{"raw":"m is rate-limited upstream"}}}"#
        ),
        "m is rate-limited upstream (HTTP 429)"
    );
    assert_eq!(
        show(
            502,
            "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
        ),
        "received a web page: 502 Bad Gateway (HTTP 502)"
    );
    assert_eq!(
        show(500, "  "),
        "the provider returned an error without a message (HTTP 500)"
    );
    assert_eq!(
        show(
            400,
            r#"[{"error":{"code":400,"message":"bad\nthing","status":"INVALID_ARGUMENT"}}]"#
        ),
        "bad thing (HTTP 400, invalid_argument)"
    );
}

#[test]
fn waiting_times_come_from_the_header_then_the_body() {
    let body = br#"{"error":{"message":"Please try again in 3s","code":"rate_limit_exceeded"}}"#;
    let wait = |header| classify(Some(429), header, body).retry_after;
    assert_eq!(
        wait(Some(Duration::from_secs(9))),
        Some(Duration::from_secs(9))
    );
    assert_eq!(wait(None), Some(Duration::from_secs(3)));
    let google = br#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"x","details":[{"retryDelay":"25s"}]}}"#;
    let error = classify(Some(429), None, google);
    assert_eq!(
        (error.action, error.retry_after),
        (RecoveryAction::Retry, Some(Duration::from_secs(25)))
    );
}

#[test]
fn bodies_of_any_size_and_depth_are_survived() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let nested = (0..8).fold("x".to_owned(), |inner, _| {
        serde_json::json!({"error": inner}).to_string()
    });
    for body in [
        deep.as_bytes(),
        nested.as_bytes(),
        &vec![0xff; 100_000],
        b"{",
        b"null",
        b"\"\"",
    ] {
        let error = classify(Some(500), None, body);
        assert!(error.message.chars().count() <= 500);
    }
}
