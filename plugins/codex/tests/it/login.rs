//! Tests of the login flow: the sign-in URL, the listener and the exchange of the code.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bub_codex::{CodexAuth, LoginError, LoginFlow, OAuthEndpoints};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{ModelsFixture, codex_fixture, stored_login};
use crate::tokens::{TOKEN_URL, jwt};

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

fn query(url: &str) -> HashMap<String, String> {
    let (_, query) = url.split_once('?').unwrap();
    form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

fn ready() -> ModelsFixture {
    let response = json!({"access_token": jwt("acc-7"), "refresh_token": "refresh-token-7", "id_token": "id-token-7"});
    codex_fixture().responds(TOKEN_URL, 200, &response.to_string())
}

/// Sends a GET request like a browser and returns the response.
async fn get(port: u16, target: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

async fn start(codex: &CodexAuth) -> (LoginFlow<'_>, u16, String) {
    let login = LoginFlow::with_listener(codex).await.unwrap();
    let values = query(&login.sign_in_url());
    let port = values["redirect_uri"]
        .strip_prefix("http://localhost:")
        .unwrap();
    let port = port
        .strip_suffix("/auth/callback")
        .unwrap()
        .parse()
        .unwrap();
    (login, port, values["state"].clone())
}

// H-99: the URL has all parameters of the sign-in page, with PKCE S256.
#[test]
fn the_address_asks_for_what_the_python_version_asks_for() {
    let codex = stored_login(&codex_fixture());
    let (first, second) = (
        LoginFlow::without_listener(&codex).unwrap().sign_in_url(),
        LoginFlow::without_listener(&codex).unwrap().sign_in_url(),
    );
    assert!(first.starts_with("http://issuer.test/oauth/authorize?response_type=code&"));
    let values = query(&first);
    for (name, value) in [
        ("client_id", "app_EMoamEEZ73f0CkXaXp7hrann"),
        ("scope", "openid profile email offline_access"),
        ("code_challenge_method", "S256"),
        ("id_token_add_organizations", "true"),
        ("codex_cli_simplified_flow", "true"),
        ("originator", "codex_cli_rs"),
    ] {
        assert_eq!(values[name], value);
    }
    assert_eq!(
        (values["state"].len(), values["code_challenge"].len()),
        (32, 43)
    );
    assert_ne!(values["state"], query(&second)["state"]);
    assert_ne!(values["code_challenge"], query(&second)["code_challenge"]);
}

#[test]
fn the_usual_redirect_is_that_of_the_python_version() {
    let fixture = codex_fixture();
    let (home, redactor) = (fixture.path("user/.codex"), fixture.redactor.clone());
    let endpoints = OAuthEndpoints::default();
    let codex = CodexAuth::new(&home, endpoints, fixture.network.clone(), redactor);
    let url = LoginFlow::without_listener(&codex).unwrap().sign_in_url();
    assert!(url.starts_with("https://auth.openai.com/oauth/authorize?"));
    assert_eq!(
        query(&url)["redirect_uri"],
        "http://localhost:1455/auth/callback"
    );
}

// H-99, W-40: other paths get 404; a request with another state is rejected and does not end the wait.
#[tokio::test]
async fn the_browser_brings_the_code_and_only_the_right_one_counts() {
    let fixture = ready();
    let codex = stored_login(&fixture);
    let (login, port, state) = start(&codex).await;
    let challenge = query(&login.sign_in_url())["code_challenge"].clone();
    let browser = async {
        // Browsers open connections on which they never send anything.
        let idle = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert!(get(port, "/favicon.ico").await.starts_with("HTTP/1.1 404 "));
        assert!(
            get(port, "/auth/callback?code=evil")
                .await
                .starts_with("HTTP/1.1 400 ")
        );
        assert!(
            get(port, "/auth/callback?code=evil&state=other")
                .await
                .starts_with("HTTP/1.1 400 ")
        );
        assert!(
            get(port, &format!("/auth/callback?state={state}"))
                .await
                .starts_with("HTTP/1.1 400 ")
        );
        let page = get(port, &format!("/auth/callback?code=good%2F1&state={state}")).await;
        assert!(
            page.starts_with("HTTP/1.1 200 ") && page.contains("You can close this page"),
            "{page}"
        );
        drop(idle);
    };
    let (outcome, ()) = tokio::join!(login.wait_for_redirect(TEST_TIMEOUT), browser);
    let logged_in = outcome.unwrap();
    assert_eq!(logged_in.account_id.as_deref(), Some("acc-7"));
    assert_eq!(logged_in.file, fixture.path("user/.codex/auth.json"));

    let requests = fixture.network.requests();
    let [exchange] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    let form = query(&exchange.replacen(' ', "?", 1));
    assert_eq!(
        (form["grant_type"].as_str(), form["code"].as_str()),
        ("authorization_code", "good/1")
    );
    assert_eq!(
        form["redirect_uri"],
        format!("http://localhost:{port}/auth/callback")
    );
    assert_eq!(
        URL_SAFE_NO_PAD.encode(Sha256::digest(form["code_verifier"].as_bytes())),
        challenge
    );
    assert!(
        TcpStream::connect(("127.0.0.1", port)).await.is_err(),
        "the listener is closed"
    );

    let path = fixture.path("user/.codex/auth.json");
    let stored: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(stored["tokens"]["refresh_token"], "refresh-token-7");
    assert_eq!(
        stored["tokens"]["id_token"], "id-token-7",
        "the Codex CLI needs it"
    );
    assert_eq!(stored["tokens"]["account_id"], "acc-7");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::metadata(fixture.path("user/.codex"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    assert!(
        fixture.endpoint("openai:x").await.is_ok(),
        "the login works immediately"
    );
}

#[tokio::test]
async fn the_other_loopback_address_works_too() {
    let fixture = ready();
    let codex = stored_login(&fixture);
    let (login, port, state) = start(&codex).await;
    let Ok(mut stream) = TcpStream::connect(("::1", port)).await else {
        return;
    };
    let request = format!("GET /auth/callback?code=x&state={state} HTTP/1.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(login.wait_for_redirect(TEST_TIMEOUT).await.is_ok());
}

#[tokio::test]
async fn a_refusal_ends_the_wait() {
    let fixture = ready();
    let codex = stored_login(&fixture);
    let (login, port, state) = start(&codex).await;
    let target = format!("/auth/callback?error=access_denied&state={state}");
    let (outcome, _) = tokio::join!(login.wait_for_redirect(TEST_TIMEOUT), get(port, &target));
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "sign-in refused: access_denied; run the command again and allow access"
    );
    assert!(fixture.network.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_a_redirect_the_wait_ends() {
    let codex = stored_login(&ready());
    let (login, ..) = start(&codex).await;
    assert!(matches!(
        login.wait_for_redirect(TEST_TIMEOUT).await,
        Err(LoginError::TimedOut(60))
    ));
}

// H-99: a URL, a query string or only the code.
#[tokio::test]
async fn a_pasted_answer_finishes_the_login() {
    for form in [
        "http://localhost:1455/auth/callback?code=c1&state={state}",
        "code=c1&state={state}",
        "c1",
    ] {
        let fixture = ready();
        let codex = stored_login(&fixture);
        let login = LoginFlow::without_listener(&codex).unwrap();
        let state = query(&login.sign_in_url())["state"].clone();
        login
            .complete_with_pasted_text(&form.replace("{state}", &state))
            .await
            .unwrap();
        assert!(
            fixture.network.requests()[0].contains("&code=c1&"),
            "{form}"
        );
    }
    let fixture = ready();
    let codex = stored_login(&fixture);
    let wrong = LoginFlow::without_listener(&codex)
        .unwrap()
        .complete_with_pasted_text("?code=c1&state=other")
        .await;
    assert!(matches!(wrong, Err(LoginError::StateMismatch)));
    assert!(fixture.network.requests().is_empty() && !fixture.path("user/.codex").exists());
}

#[tokio::test]
async fn an_exchange_that_fails_keeps_the_old_login_and_shows_nothing_secret() {
    let old = r#"{"tokens": {"access_token": "old-token-1"}}"#;
    for (status, body) in [
        (400, r#"{"error": {"message": "bad code"}}"#),
        (200, "{}"),
        (502, "<html>secret-page</html>"),
    ] {
        let fixture = codex_fixture()
            .file("user/.codex/auth.json", old)
            .responds(TOKEN_URL, status, body);
        let codex = stored_login(&fixture);
        let error = LoginFlow::without_listener(&codex)
            .unwrap()
            .complete_with_pasted_text("secret-code")
            .await
            .unwrap_err()
            .to_string();
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(
            fs::read_to_string(fixture.path("user/.codex/auth.json")).unwrap(),
            old
        );
    }
}

// The user does not sign in if the login cannot be stored.
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_reported_before_the_sign_in() {
    let fixture = codex_fixture().file("user/.codex", "a file where the directory should be");
    let codex = stored_login(&fixture);
    let Err(error) = LoginFlow::without_listener(&codex) else {
        panic!("expected an error")
    };
    let error = fixture.shorten(error);
    assert!(
        error.starts_with("cannot write user/.codex/auth.json: "),
        "{error}"
    );
    assert!(
        error.ends_with("; make it writable, or choose another directory with `--codex-home`"),
        "{error}"
    );
    // The check leaves no files behind.
    let fixture = codex_fixture();
    LoginFlow::without_listener(&stored_login(&fixture)).unwrap();
    let left: Vec<_> = fs::read_dir(fixture.path("user"))
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, [".bub"]);
}
