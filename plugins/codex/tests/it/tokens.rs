//! Tests of the Codex login in model calls: `auth.json`, refreshing, and precedence.

use std::fs;
use std::future::poll_fn;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::task::Poll;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bub::model::{ChatRequest, ChoiceReason, KeySource, WireFormat};
use bub_codex::{LoginError, LoginFlow};
use serde_json::{Value, json};

use crate::fixture::{ModelsFixture, codex_fixture, header, stored_login};

pub(crate) const TOKEN_URL: &str = "http://issuer.test/oauth/token";
const FUTURE: &str = "2099-01-01T00:00:00Z";
const PAST: &str = "2020-01-01T00:00:00Z";

/// Returns a JWT that names an account.
pub(crate) fn jwt(account: &str) -> String {
    let claims = json!({"https://api.openai.com/auth": {"chatgpt_account_id": account}});
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

fn logged_in(fixture: ModelsFixture, expires_at: &str) -> ModelsFixture {
    let auth = json!({
        "OPENAI_API_KEY": null,
        "tokens": {
            "id_token": "id-token-1", "access_token": "access-token-1", "refresh_token": "refresh-token-1",
            "expires_at": expires_at, "account_id": "acc-1", "own": [1]
        },
        "last_refresh": PAST,
        "note": "größer",
    });
    fixture.file("user/.codex/auth.json", &auth.to_string())
}

fn auth(fixture: &ModelsFixture) -> Value {
    serde_json::from_str(&fs::read_to_string(fixture.path("user/.codex/auth.json")).unwrap())
        .unwrap()
}

// H-95, H-96: endpoint, headers and defaults of the body.
#[tokio::test]
async fn a_login_is_used_when_there_is_no_key() {
    let fixture = logged_in(codex_fixture(), FUTURE);
    let endpoint = fixture.endpoint("openai:gpt-6-sol").await.unwrap();
    assert_eq!(
        endpoint.base_url.as_str(),
        "https://chatgpt.com/backend-api/codex"
    );
    assert_eq!(endpoint.wire, WireFormat::Responses);
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        "Bearer access-token-1"
    );
    assert_eq!(header(&endpoint, "chatgpt-account-id").unwrap(), "acc-1");
    assert_eq!(
        header(&endpoint, "openai-beta").unwrap(),
        "responses=experimental"
    );
    assert_eq!(header(&endpoint, "originator").unwrap(), "bub");
    let request = ChatRequest {
        model: "gpt-6-sol".into(),
        messages: Arc::new(vec![json!({"role": "user", "content": "hi"})]),
        max_tokens: Some(99),
        reasoning_effort: Some("low".into()),
        stream: true,
        extra: json!({"temperature": 1, "max_tokens": 5})
            .as_object()
            .unwrap()
            .clone(),
        ..ChatRequest::default()
    };
    let sent = endpoint.wire.encode(&request, &endpoint.quirks);
    assert_eq!(sent.path, "/responses");
    assert_eq!(
        serde_json::from_slice::<Value>(&sent.body).unwrap(),
        json!({
            "model": "gpt-6-sol", "instructions": "You are Codex.", "input": [{"role": "user", "content": "hi"}],
            "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
            "text": {"verbosity": "medium"}, "reasoning": {"effort": "low"},
        })
    );
    assert_eq!(
        endpoint.key,
        Some(KeySource::Login(fixture.path("user/.codex/auth.json")))
    );
    assert!(fixture.network.requests().is_empty());
    assert_eq!(
        fixture.redactor.redact("access-token-1 refresh-token-1"),
        "*** ***"
    );
}

// H-95, except that a login does not take precedence over a key.
#[tokio::test]
async fn every_key_outranks_a_login() {
    for (name, value) in [
        ("OPENAI_API_KEY", "own-key-1"),
        ("BUB_OPENAI_API_KEY", "own-key-1"),
        ("BUB_API_KEY", "own-key-1"),
    ] {
        let fixture = logged_in(codex_fixture(), FUTURE)
            .env("BUB_MODEL", "openai:gpt-5")
            .env(name, value);
        let endpoint = fixture.endpoint("openai:gpt-5").await.unwrap();
        assert_eq!(
            endpoint.base_url.as_str(),
            "https://api.openai.com/v1",
            "{name}"
        );
        assert_eq!(
            header(&endpoint, "authorization").unwrap(),
            "Bearer own-key-1"
        );
    }
}

// H-95: a key that is a token with an account, with and without a configured base URL.
#[tokio::test]
async fn a_token_as_key_goes_to_the_service_of_tokens() {
    let token = jwt("acc-9");
    let fixture = codex_fixture().env("OPENAI_API_KEY", &token);
    let endpoint = fixture.endpoint("openai:gpt-5").await.unwrap();
    assert_eq!(
        endpoint.base_url.as_str(),
        "https://chatgpt.com/backend-api/codex"
    );
    assert_eq!(header(&endpoint, "chatgpt-account-id").unwrap(), "acc-9");

    let fixture = fixture.env("BUB_OPENAI_API_BASE", "https://proxy.example/v1");
    let endpoint = fixture.endpoint("openai:gpt-5").await.unwrap();
    assert_eq!(endpoint.base_url.as_str(), "https://proxy.example/v1");
    assert_eq!(endpoint.wire, WireFormat::ChatCompletions);
}

// H-95: a login is not used with a configured base URL.
#[tokio::test]
async fn a_login_never_goes_to_another_address() {
    let custom = [
        "api_base: {openai: 'https://proxy.example/v1'}",
        "providers: {openai: {base_url: 'https://proxy.example/v1'}}",
    ];
    for yaml in custom {
        let fixture = logged_in(codex_fixture(), FUTURE).config(&format!("{yaml}\n"));
        assert!(fixture.endpoint("openai:gpt-5").await.is_err(), "{yaml}");
    }
    let fixture =
        logged_in(codex_fixture(), FUTURE).env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
    let endpoint = fixture.endpoint("openai:gpt-5").await.unwrap();
    assert!(endpoint.headers.is_empty(), "{endpoint:?}");
}

#[tokio::test]
async fn a_login_decides_about_the_model_after_keys_and_before_local_servers() {
    let fixture = logged_in(codex_fixture(), PAST);
    let choice = fixture.choice().await;
    assert_eq!(choice.model.unwrap().to_string(), "openai:gpt-6-sol");
    assert_eq!(
        fixture.shorten(choice.reason),
        "`model` is not set; login in user/.codex/auth.json"
    );
    assert!(fixture.network.requests().is_empty());
    let fixture = fixture.env("GROQ_API_KEY", "groq-key-1");
    assert_eq!(fixture.choice().await.model.unwrap().provider(), "groq");
}

// C.5, W-40: other content is preserved; the file has mode 0600, ASCII text, two spaces and a final newline.
#[tokio::test]
async fn an_expired_token_is_refreshed_and_kept() {
    let access = jwt("acc-2");
    let response =
        json!({"access_token": access, "refresh_token": "refresh-token-2", "expires_in": 3600});
    let fixture = logged_in(codex_fixture(), PAST).responds(TOKEN_URL, 200, &response.to_string());
    let endpoint = fixture.endpoint("openai:x").await.unwrap();
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        format!("Bearer {access}")
    );
    assert_eq!(header(&endpoint, "chatgpt-account-id").unwrap(), "acc-2");
    assert_eq!(
        fixture.network.requests(),
        [format!(
            "{TOKEN_URL} client_id=app_EMoamEEZ73f0CkXaXp7hrann&grant_type=refresh_token&refresh_token=refresh-token-1"
        )]
    );
    let stored = auth(&fixture);
    let tokens = &stored["tokens"];
    assert_eq!(tokens["refresh_token"], "refresh-token-2");
    assert_eq!(
        (&tokens["id_token"], &tokens["own"]),
        (&json!("id-token-1"), &json!([1])),
        "kept"
    );
    assert_eq!(
        (&stored["OPENAI_API_KEY"], &stored["note"]),
        (&json!(null), &json!("größer")),
        "kept"
    );
    let expires = tokens["expires_at"].as_str().unwrap();
    assert!(
        expires.len() == 20 && expires.ends_with('Z') && expires > PAST,
        "{expires}"
    );
    let path = fixture.path("user/.codex/auth.json");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.is_ascii() && text.starts_with("{\n  \"") && text.ends_with("}\n"),
        "{text}"
    );
    fixture.endpoint("openai:x").await.unwrap();
    assert_eq!(
        fixture.network.requests().len(),
        1,
        "the token is valid now"
    );
}

// H-99: a token is refreshed two minutes before it expires.
#[tokio::test]
async fn a_token_is_refreshed_before_it_expires() {
    let soon = jiff::Timestamp::now().as_second() + 60;
    let fixture = logged_in(
        codex_fixture(),
        &jiff::Timestamp::from_second(soon).unwrap().to_string(),
    );
    let fixture = fixture.responds(
        TOKEN_URL,
        200,
        r#"{"access_token": "access-token-2", "expires_in": 3600}"#,
    );
    let endpoint = fixture.endpoint("openai:x").await.unwrap();
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        "Bearer access-token-2"
    );
    assert_eq!(
        auth(&fixture)["tokens"]["refresh_token"],
        "refresh-token-1",
        "the server did not rotate it, so it is kept"
    );
}

// H-99: the old token is used while it is valid; otherwise the error says what to do.
#[tokio::test]
async fn a_refresh_that_fails_leaves_a_valid_token_in_use() {
    let soon = jiff::Timestamp::now().as_second() + 60;
    let fixture = logged_in(
        codex_fixture(),
        &jiff::Timestamp::from_second(soon).unwrap().to_string(),
    );
    let endpoint = fixture.endpoint("openai:x").await.unwrap();
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        "Bearer access-token-1"
    );

    let refusal = r#"{"error": "invalid_grant", "error_description": "token was revoked"}"#;
    let fixture = logged_in(codex_fixture(), PAST).responds(TOKEN_URL, 400, refusal);
    let error = fixture.endpoint("openai:x").await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the login for `openai` cannot be used: the token endpoint rejected the request (HTTP 400): token was revoked; \
         run `bub login openai`"
    );
    assert_eq!(
        auth(&fixture)["tokens"]["access_token"],
        "access-token-1",
        "a failure changes nothing"
    );
}

// W-40: concurrent calls refresh once; a rotated refresh token is never used twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_calls_at_once_refresh_once() {
    let fixture = logged_in(codex_fixture(), PAST);
    let fixture = fixture.responds(
        TOKEN_URL,
        200,
        r#"{"access_token": "access-token-2", "refresh_token": "r2-token", "expires_in": 3600}"#,
    );
    // Each has its own lock in memory, like separate processes. They share only the lock file.
    let processes: Vec<_> = (0..8)
        .map(|_| std::sync::Arc::new(fixture.models()))
        .collect();
    let calls = processes
        .iter()
        .flat_map(|models| [models.clone(), models.clone()])
        .map(|models| {
            tokio::spawn(async move {
                models
                    .endpoint(&models.resolve_model("openai:x").unwrap())
                    .await
                    .unwrap()
            })
        });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(
            header(&call.await.unwrap(), "authorization").unwrap(),
            "Bearer access-token-2"
        );
    }
    assert_eq!(fixture.network.requests().len(), 1);
}

// A turn may be cancelled at any time. A rotated refresh token must not be lost then.
#[tokio::test]
async fn a_cancelled_call_does_not_lose_the_rotated_token() {
    let fixture = logged_in(codex_fixture(), PAST);
    let gate = Arc::new(tokio::sync::Notify::new());
    fixture.network.hold(&gate);
    let fixture = fixture.responds(
        TOKEN_URL,
        200,
        r#"{"access_token": "access-token-2", "refresh_token": "r2-token", "expires_in": 3600}"#,
    );
    let models = fixture.models();
    let id = models.resolve_model("openai:x").unwrap();
    let mut call = Box::pin(models.endpoint(&id));
    while fixture.network.requests().is_empty() {
        let pending =
            poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending())).await;
        assert!(pending);
        tokio::task::yield_now().await;
    }
    drop(call);
    gate.notify_one();
    // The lock is released when the refresh ends. Then a second call reads the new tokens.
    let endpoint = models.endpoint(&id).await.unwrap();
    assert_eq!(
        header(&endpoint, "authorization").unwrap(),
        "Bearer access-token-2"
    );
    assert_eq!(auth(&fixture)["tokens"]["refresh_token"], "r2-token");
    assert_eq!(fixture.network.requests().len(), 1);
}

#[tokio::test]
async fn a_refused_token_is_renewed_unless_it_was_renewed_already() {
    let fixture = logged_in(codex_fixture(), FUTURE);
    let fixture = fixture.responds(
        TOKEN_URL,
        200,
        r#"{"access_token": "access-token-2", "expires_in": 3600}"#,
    );
    let models = fixture.models();
    let refused = models
        .endpoint(&models.resolve_model("openai:x").unwrap())
        .await
        .unwrap();
    let renewed = models.renew_endpoint(&refused).await.unwrap().unwrap();
    assert_eq!(
        header(&renewed, "authorization").unwrap(),
        "Bearer access-token-2"
    );
    let again = models.renew_endpoint(&refused).await.unwrap().unwrap();
    assert_eq!(
        header(&again, "authorization").unwrap(),
        "Bearer access-token-2"
    );
    assert_eq!(fixture.network.requests().len(), 1);
}

// C.5: a number or a date; otherwise the claim of the token, then `last_refresh`, then one hour from now.
#[tokio::test]
async fn the_expiry_is_read_in_every_form() {
    let now = jiff::Timestamp::now().as_second();
    let token = |exp: i64| {
        format!(
            "e30.{}.c2ln",
            URL_SAFE_NO_PAD.encode(json!({"exp": exp}).to_string())
        )
    };
    for (auth, fresh) in [
        (
            json!({"tokens": {"access_token": "t-123456", "expires_at": now + 600}}),
            true,
        ),
        (
            json!({"tokens": {"access_token": "t-123456", "expires_at": 4_070_908_800.5}}),
            true,
        ),
        (
            json!({"tokens": {"access_token": "t-123456", "expires_at": now - 600}}),
            false,
        ),
        (
            json!({"tokens": {"access_token": "t-123456", "expires_at": "2099-01-01T01:00:00+01:00"}}),
            true,
        ),
        (
            json!({"tokens": {"access_token": token(now + 600)}, "last_refresh": PAST}),
            true,
        ),
        (json!({"tokens": {"access_token": token(now - 600)}}), false),
        (
            json!({"tokens": {"access_token": "t-123456"}, "last_refresh": FUTURE}),
            true,
        ),
        (
            json!({"tokens": {"access_token": "t-123456"}, "last_refresh": PAST}),
            false,
        ),
        (
            json!({"tokens": {"access_token": "t-123456", "expires_at": "soon"}}),
            true,
        ),
    ] {
        let fixture = codex_fixture().file("user/.codex/auth.json", &auth.to_string());
        assert_eq!(fixture.endpoint("openai:x").await.is_ok(), fresh, "{auth}");
    }
}

#[tokio::test]
async fn a_file_without_tokens_is_no_login_and_a_broken_one_is_not_quoted() {
    for text in [
        "{}",
        r#"{"tokens": null}"#,
        r#"{"tokens": {"access_token": ""}}"#,
        r#"{"OPENAI_API_KEY": "x"}"#,
    ] {
        let fixture = codex_fixture().file("user/.codex/auth.json", text);
        let error = fixture.endpoint("openai:x").await.unwrap_err().to_string();
        assert!(error.starts_with("no API key for `openai`"), "{error}");
    }
    let fixture = codex_fixture().file(
        "user/.codex/auth.json",
        r#"{"tokens": {"access_token": "sk-secret-1""#,
    );
    let error = fixture.endpoint("openai:x").await.unwrap_err().to_string();
    assert!(
        error.contains("auth.json is not valid JSON") && !error.contains("sk-secret-1"),
        "{error}"
    );
}

#[tokio::test]
async fn codex_home_moves_the_login_and_a_link_stays_a_link() {
    let fixture = logged_in(codex_fixture(), PAST);
    fs::create_dir(fixture.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(
        fixture.path("user/.codex/auth.json"),
        fixture.path("elsewhere/auth.json"),
    )
    .unwrap();
    let home = fixture.path("elsewhere").display().to_string();
    let fixture = fixture.env("CODEX_HOME", &home);
    let fixture = fixture.responds(
        TOKEN_URL,
        200,
        r#"{"access_token": "access-token-2", "expires_in": 3600}"#,
    );
    fixture.endpoint("openai:x").await.unwrap();
    assert!(
        fs::symlink_metadata(fixture.path("elsewhere/auth.json"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(auth(&fixture)["tokens"]["access_token"], "access-token-2");
}

// A pipe, a device, a directory and a huge file are rejected immediately and never replaced.
#[tokio::test]
async fn only_a_plain_file_of_reasonable_size_is_a_login() {
    let fixture_with = |kind: &str| {
        let fixture = codex_fixture().file("user/.codex/other", "");
        let path = fixture.path("user/.codex/auth.json");
        match kind {
            "pipe" => assert!(
                std::process::Command::new("mkfifo")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            ),
            "device" => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            "directory" => fs::create_dir(&path).unwrap(),
            _ => fs::write(&path, vec![b' '; 2 << 20]).unwrap(),
        }
        fixture
    };
    for (kind, reason) in [
        ("pipe", "not a regular file"),
        ("device", "not a regular file"),
        ("directory", "not a regular file"),
        ("huge", "larger than 1 MiB"),
    ] {
        let fixture = fixture_with(kind);
        let expected = format!(
            "the login for `openai` cannot be used: cannot read user/.codex/auth.json: {reason}; run `bub login openai`"
        );
        assert_eq!(
            fixture.shorten(fixture.endpoint("openai:x").await.unwrap_err()),
            expected,
            "{kind}"
        );
        // The login does not choose the model, the report says why, and a new login fails before the sign-in.
        assert_eq!(
            fixture.choice().await.reason,
            ChoiceReason::Nothing,
            "{kind}"
        );
        let report = fixture.models().report().await;
        let openai = report
            .providers
            .iter()
            .find(|provider| provider.name == "openai")
            .unwrap();
        assert_eq!(
            fixture.shorten(openai.todo.as_ref().unwrap()),
            expected,
            "{kind}"
        );
        let Err(LoginError::Unwritable(problem)) =
            LoginFlow::without_listener(&stored_login(&fixture))
        else {
            panic!("{kind}")
        };
        assert_eq!(
            fixture.shorten(problem),
            format!("cannot write user/.codex/auth.json: {reason}")
        );
    }
}

#[tokio::test]
async fn a_lock_that_is_a_pipe_does_not_hang_a_refresh() {
    let fixture = logged_in(codex_fixture(), PAST);
    let lock = fixture.path("user/.codex/auth.json.lock");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&lock)
            .status()
            .unwrap()
            .success()
    );
    let error = fixture.shorten(fixture.endpoint("openai:x").await.unwrap_err());
    assert!(
        error.contains("cannot lock user/.codex/auth.json: not a regular file"),
        "{error}"
    );
}

// If the service does not respond, the login stays valid and the user need not sign in again.
#[tokio::test]
async fn a_service_that_cannot_be_reached_is_a_temporary_failure() {
    for (status, problem_text) in [
        (
            None,
            "the token endpoint did not respond: connection refused",
        ),
        (Some(503), "the token endpoint failed (HTTP 503)"),
        (
            Some(429),
            "the token endpoint rejected the request (HTTP 429)",
        ),
    ] {
        let fixture = logged_in(codex_fixture(), PAST);
        let fixture = match status {
            Some(status) => fixture.responds(TOKEN_URL, status, "<html>busy</html>"),
            None => fixture,
        };
        let error = fixture.endpoint("openai:x").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the login for `openai` cannot be refreshed: {problem_text}; try again later")
        );
        assert_eq!(
            bub::model::ModelError::from(error).kind,
            bub::model::ModelErrorKind::Transport
        );
        assert_eq!(auth(&fixture)["tokens"]["refresh_token"], "refresh-token-1");
        let login = LoginFlow::without_listener(&stored_login(&fixture))
            .unwrap()
            .complete_with_pasted_text("bare-code")
            .await;
        assert_eq!(
            login.unwrap_err().to_string(),
            format!("{problem_text}; try again later")
        );
    }
}

// `bub models` and a turn treat an expired login equally, with and without a refresh token.
#[tokio::test]
async fn an_expired_login_is_usable_only_if_it_can_be_refreshed() {
    let fixture = logged_in(codex_fixture(), PAST);
    assert!(matches!(
        fixture.choice().await.reason,
        ChoiceReason::Login(_)
    ));

    let expired =
        json!({"tokens": {"access_token": "access-token-1", "expires_at": PAST}}).to_string();
    let fixture = codex_fixture().file("user/.codex/auth.json", &expired);
    assert_eq!(fixture.choice().await.reason, ChoiceReason::Nothing);
    let report = fixture.models().report().await;
    let openai = report
        .providers
        .iter()
        .find(|provider| provider.name == "openai")
        .unwrap();
    assert!(!openai.usable && openai.key.is_none());
    let expected = "the login for `openai` cannot be used: it has expired and has no refresh token; run `bub login openai`";
    assert_eq!(openai.todo.as_deref(), Some(expected));
    assert_eq!(
        fixture.endpoint("openai:x").await.unwrap_err().to_string(),
        expected
    );
}

// H-95: with a configured base URL, the token is neither sent there nor a reason to choose a model.
#[tokio::test]
async fn a_login_does_not_choose_a_model_for_another_address() {
    let fixture = logged_in(codex_fixture(), "2999-01-01T00:00:00Z")
        .env("OPENAI_BASE_URL", "https://proxy.example/v1");
    assert_eq!(fixture.choice().await.reason, ChoiceReason::Nothing);
    let error = fixture.endpoint("openai:x").await.unwrap_err().to_string();
    assert!(error.starts_with("no API key for `openai`"), "{error}");
    let report = fixture.models().report().await;
    let openai = report
        .providers
        .iter()
        .find(|provider| provider.name == "openai")
        .unwrap();
    assert!(
        !openai.usable
            && openai
                .todo
                .as_ref()
                .unwrap()
                .starts_with("set OPENAI_API_KEY"),
        "{openai:?}"
    );
}
