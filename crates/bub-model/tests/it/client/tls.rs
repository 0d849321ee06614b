//! Tests of TLS on loopback: untrusted certificates are rejected, those in `SSL_CERT_FILE` are accepted.

use std::sync::Arc;

use bub_model::{
    BaseUrl, Endpoint, HttpOptions, ModelClient, ModelError, ModelErrorKind, RecoveryAction,
    WireFormat,
};
use bub_settings::{Environment, Redactor};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::support::{KEY, assert_no_key, quick, request};

/// A server with a self-signed certificate: its base URL, the certificate, and the number of connections.
struct Server {
    base: BaseUrl,
    pem: String,
    connections: Arc<std::sync::atomic::AtomicUsize>,
}

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"safe\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

async fn serve(name: &str) -> Server {
    serve_as(name, rcgen::IsCa::NoCa).await
}

async fn serve_as(name: &str, is_ca: rcgen::IsCa) -> Server {
    let signing_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.is_ca = is_ca;
    let cert = params.self_signed(&signing_key).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = BaseUrl::parse(&format!("https://{}/v1", listener.local_addr().unwrap())).unwrap();
    let connections = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((socket, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let mut request_bytes = [0; 8192];
            let _ = stream.read(&mut request_bytes).await;
            let _ = stream.write_all(ANSWER.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    Server {
        base,
        pem: cert.pem(),
        connections,
    }
}

/// Calls the server with these trusted certificates and returns the text of the answer.
async fn call(server: &Server, certificates: Option<&str>) -> Result<String, ModelError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    let mut variables = Vec::new();
    if let Some(pem) = certificates {
        std::fs::write(&file, pem).unwrap();
        variables.push(("SSL_CERT_FILE", file.as_os_str()));
    }
    let options = HttpOptions::from_environment(&Environment::from_pairs(variables));
    let endpoint = Endpoint::new(
        "own:model".parse().unwrap(),
        WireFormat::ChatCompletions,
        server.base.clone(),
    );
    let client = ModelClient::new(options, Redactor::new());
    let answer = client
        .complete(endpoint.with_key(&KEY.into()), request(true), quick())
        .await;
    answer.map(|answer| answer.text)
}

#[tokio::test]
async fn an_untrusted_certificate_is_refused_and_not_retried() {
    let server = serve("127.0.0.1").await;
    let error = call(&server, None).await.unwrap_err();
    assert_eq!(
        (error.kind, error.action),
        (ModelErrorKind::Transport, RecoveryAction::NextModel)
    );
    assert!(
        error.message.starts_with(&format!(
            "no secure connection to {}: its cert",
            server.base
        )),
        "{error}"
    );
    assert!(
        error.message.contains("SSL_CERT_FILE"),
        "the error says what to do: {error}"
    );
    assert_no_key(&format!("{error:?}"));
    assert_eq!(
        server.connections.load(std::sync::atomic::Ordering::SeqCst),
        1
    );
}

#[tokio::test]
async fn a_certificate_in_ssl_cert_file_is_trusted() {
    let server = serve("127.0.0.1").await;
    assert_eq!(call(&server, Some(&server.pem)).await.unwrap(), "safe");
}

#[tokio::test]
async fn a_trusted_certificate_for_another_host_is_refused() {
    let server = serve("elsewhere.example").await;
    let error = call(&server, Some(&server.pem)).await.unwrap_err();
    assert!(
        error
            .message
            .ends_with("its certificate is for another host; check the base URL"),
        "{error}"
    );
}

#[tokio::test]
async fn a_ca_certificate_shown_by_a_server_is_named_in_words() {
    let server = serve_as(
        "127.0.0.1",
        rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
    )
    .await;
    let error = call(&server, Some(&server.pem)).await.unwrap_err();
    assert!(
        error
            .message
            .contains("uses a CA certificate (CA:TRUE) as its server certificate"),
        "{error}"
    );
    assert!(!error.message.contains("Error("), "{error}");
}

#[tokio::test]
async fn a_file_without_certificates_is_said_to_be_one() {
    let server = serve("127.0.0.1").await;
    let error = call(&server, Some("not a certificate")).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Setup);
    assert!(
        error
            .message
            .contains("ca.pem: contains no PEM certificates"),
        "{error}"
    );
}
