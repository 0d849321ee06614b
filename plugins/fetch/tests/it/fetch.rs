//! `web.fetch`: web pages as text, without access to private networks.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bub::{
    BoxFuture, Envelope, Framework, Result, Settings, State, ToolContext, Turn,
    settings::testing::load,
};
use bub_fetch::{HostResolver, WebClient, WebTools, html_to_markdown};
use serde_json::{Value, json};

/// A server on loopback that returns fixed bytes for each path and records the requests.
pub(crate) struct FakeSite {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeSite {
    pub(crate) fn start<const N: usize>(pages: [(&'static str, Vec<u8>); N]) -> Self {
        Self::at("127.0.0.1:0", pages)
    }

    fn at<const N: usize>(address: &str, pages: [(&'static str, Vec<u8>); N]) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let pages = Arc::new(HashMap::from(pages));
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (pages, log) = (Arc::clone(&pages), Arc::clone(&log));
                std::thread::spawn(move || answer(stream.unwrap(), &pages, &log));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, pages: &HashMap<&'static str, Vec<u8>>, log: &Mutex<Vec<String>>) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(request);
    let page = pages
        .get(path.as_str())
        .cloned()
        .unwrap_or_else(|| http("404 Not Found", "", b"nothing here"));
    let _ = stream.write_all(&page);
    if path == "/slow" {
        // Wait until the client gives up.
        let _ = stream.read(&mut byte);
    }
}

fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn page(kind: &str, body: &[u8]) -> Vec<u8> {
    http("200 OK", &format!("content-type: {kind}\r\n"), body)
}

fn redirect(to: &str) -> Vec<u8> {
    http("302 Found", &format!("location: {to}\r\n"), b"")
}

fn settings(variables: &[(&str, &str)]) -> Settings {
    let home = [("BUB_HOME", "/nonexistent"), ("HOME", "/nonexistent")];
    let variables = home.into_iter().chain(variables.iter().copied());
    let sections = bub::core_sections().chain([bub_fetch::settings::section()]);
    load(variables, sections)
}

fn web(allowed: &str) -> WebClient {
    WebClient::new(&settings(&[("BUB_WEB_ALLOW_PRIVATE", allowed)]))
}

async fn fetch_with(web: WebClient, arguments: Value) -> Result<String> {
    let framework = Framework::builder().build();
    let turn = Turn::detached(&framework, Envelope::from_text("hi"), State::new());
    let [tool] = <[_; 1]>::try_from(Arc::new(WebTools::new(web)).tools())
        .ok()
        .unwrap();
    let arguments = arguments.as_object().cloned().unwrap();
    let value = tool.call(arguments, ToolContext::new(turn)).await?;
    assert_eq!(value["status"], 200, "{value}");
    Ok(tool.render(&value).unwrap())
}

async fn fetch(web: WebClient, url: &str) -> Result<String> {
    fetch_with(web, json!({"url": url})).await
}

// H-117
#[tokio::test]
async fn a_page_is_asked_for_as_markdown_and_returned_as_text() {
    let site = FakeSite::start([
        ("/md", page("text/markdown", b"# Hello\n\n*as it is*\n")),
        (
            "/html",
            page(
                "text/html; charset=utf-8",
                "<title>T</title><p>caf\u{e9} <a href='/x'>more</a>".as_bytes(),
            ),
        ),
        ("/json", page("application/json", b"{\"a\": 1}")),
        ("/empty", page("text/plain", b"")),
    ]);
    let local = || web("127.0.0.0/8");
    assert_eq!(
        fetch(local(), &site.url("/md#part")).await.unwrap(),
        "# Hello\n\n*as it is*\n"
    );
    let text = fetch(local(), &site.url("/html")).await.unwrap();
    assert_eq!(text, format!("# T\n\ncaf\u{e9} [more]({})", site.url("/x")));
    assert_eq!(
        fetch(local(), &site.url("/json")).await.unwrap(),
        "{\"a\": 1}"
    );
    assert_eq!(
        fetch(local(), &site.url("/empty")).await.unwrap(),
        "(no text)"
    );
    let request = site.requests().remove(0);
    assert!(request.starts_with("GET /md HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains("accept: text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.1\r\n"),
        "{request}"
    );
    assert!(request.contains("user-agent: bub/"), "{request}");

    let custom_headers = json!({"url": site.url("/md"), "headers": {"Accept": "text/plain", "Authorization": "Bearer t"}});
    fetch_with(local(), custom_headers).await.unwrap();
    let request = site.requests().pop().unwrap();
    assert!(
        request.contains("accept: text/plain\r\n")
            && request.contains("authorization: Bearer t\r\n"),
        "{request}"
    );
}

// H-117
#[tokio::test]
async fn what_is_no_success_is_an_error_with_its_status_and_words() {
    let site = FakeSite::start([(
        "/gone",
        http(
            "410 Gone",
            "content-type: text/html\r\n",
            b"<h1>Sorry</h1><p>moved away",
        ),
    )]);
    let error = fetch(web("127.0.0.1"), &site.url("/gone"))
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "HTTP 410 Gone from 127.0.0.1: # Sorry moved away"
    );
    let error = fetch(web("127.0.0.1"), &site.url("/missing"))
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "HTTP 404 Not Found from 127.0.0.1: nothing here"
    );
}

// W-31, L7: all spellings of loopback and private addresses.
#[tokio::test]
async fn private_addresses_are_refused_however_they_are_written() {
    let site = FakeSite::start([("/", page("text/plain", b"secret"))]);
    let port = site.address.port();
    let hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::1]",
        "[fe80::1]",
        "[fec0::1]",
        "[fc00::1]",
        "[fd12:3456::1]",
        "[ff02::1]",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[fd00:ec2::254]",
    ];
    for host in hosts {
        let error = fetch(web(""), &format!("http://{host}:{port}/"))
            .await
            .unwrap_err();
        assert!(
            error.message().contains("web.allow_private"),
            "{host}: {error}"
        );
    }
    assert!(site.requests().is_empty(), "{:?}", site.requests());
}

// W-31
#[tokio::test]
async fn the_owner_permits_hosts_and_networks() {
    let site = FakeSite::start([("/", page("text/plain", b"intranet"))]);
    let port = site.address.port();
    let answers = |name: &'static str| FakeResolver::new(vec![(name, vec!["127.0.0.1"])]);
    let cases = [
        ("127.0.0.0/8", "127.0.0.1", true),
        ("127.0.0.1", "[::ffff:127.0.0.1]", true),
        ("127.0.0.2/32", "127.0.0.1", false),
        ("127.0.0.1/33", "127.0.0.1", false),
        ("wiki.corp", "wiki.corp", true),
        ("wiki.corp", "WIKI.corp.", true),
        ("*.corp", "wiki.corp", true),
        ("*.corp", "wikicorp", false),
        ("corp", "wiki.corp", false),
        ("10.0.0.0/8, 127.0.0.0/30", "wiki.corp", true),
    ];
    for (allowed, host, works) in cases {
        let lookup = answers(if host == "wikicorp" {
            "wikicorp"
        } else {
            "wiki.corp"
        });
        let web =
            WebClient::with_resolver(&settings(&[("BUB_WEB_ALLOW_PRIVATE", allowed)]), lookup);
        let got = fetch(web, &format!("http://{host}:{port}/")).await;
        assert_eq!(got.is_ok(), works, "{allowed} {host}: {got:?}");
    }
}

// W-31
#[tokio::test]
async fn redirects_are_checked_counted_and_carry_nothing_to_other_hosts() {
    let inside = FakeSite::at("127.0.0.2:0", [("/", page("text/plain", b"secret"))]);
    let other = FakeSite::at("127.0.0.3:0", [("/", page("text/plain", b"other"))]);
    let to = |site: &FakeSite| redirect(&site.url("/"));
    let site = FakeSite::start([
        ("/inside", to(&inside)),
        (
            "/metadata",
            redirect("http://169.254.169.254/latest/meta-data/"),
        ),
        ("/decimal", redirect("http://2130706434:1/")),
        ("/file", redirect("file:///etc/passwd")),
        ("/user", redirect("http://user:word@127.0.0.3/")),
        ("/loop", redirect("/loop")),
        ("/here", redirect("there")),
        ("/there", page("text/plain", b"moved")),
        ("/other", to(&other)),
    ]);
    let allowed = "127.0.0.1, 127.0.0.3";
    for path in ["/inside", "/metadata", "/decimal", "/file", "/user"] {
        let error = fetch(web(allowed), &site.url(path)).await.unwrap_err();
        assert!(error.message().contains("refused"), "{path}: {error}");
    }
    assert!(inside.requests().is_empty());
    let error = fetch(web(allowed), &site.url("/loop")).await.unwrap_err();
    assert_eq!(
        error.message(),
        "too many redirects: more than 5; the last redirect goes to 127.0.0.1"
    );
    assert_eq!(
        site.requests()
            .iter()
            .filter(|request| request.starts_with("GET /loop "))
            .count(),
        6
    );

    let with = |path: &str| json!({"url": site.url(path), "headers": {"authorization": "Bearer t", "x-key": "k"}});
    assert_eq!(
        fetch_with(web(allowed), with("/here")).await.unwrap(),
        "moved"
    );
    assert!(
        site.requests().pop().unwrap().contains("Bearer t"),
        "the same host may see it again"
    );
    assert_eq!(
        fetch_with(web(allowed), with("/other")).await.unwrap(),
        "other"
    );
    let request = other.requests().pop().unwrap();
    assert!(
        !request.contains("Bearer") && !request.contains("x-key"),
        "{request}"
    );
    assert!(request.contains("accept: text/markdown"), "{request}");
}

/// A resolver with a list of results per name. Each result is used once, the last one without a limit.
struct FakeResolver {
    answers: HashMap<&'static str, Vec<&'static str>>,
    request: AtomicUsize,
}

impl FakeResolver {
    fn new(answers: Vec<(&'static str, Vec<&'static str>)>) -> Arc<Self> {
        Arc::new(Self {
            answers: answers.into_iter().collect(),
            request: AtomicUsize::new(0),
        })
    }
}

impl HostResolver for FakeResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let number = self.request.fetch_add(1, Ordering::SeqCst);
        let addresses_text = self
            .answers
            .get(host)
            .map(|answers| answers[number.min(answers.len() - 1)]);
        let addresses = addresses_text.map(|addresses_text| {
            addresses_text
                .split(' ')
                .map(|ip| ip.parse().unwrap())
                .collect()
        });
        Box::pin(std::future::ready(
            addresses.ok_or_else(|| io::Error::other("no such host")),
        ))
    }
}

// W-31: a name is resolved once, and the connection uses the checked address.
#[tokio::test]
async fn a_name_that_changes_its_address_gains_nothing() {
    let public = FakeSite::start([("/", page("text/plain", b"public"))]);
    let port = public.address.port();
    let inside = FakeSite::at(
        &format!("127.0.0.2:{port}"),
        [("/", page("text/plain", b"secret"))],
    );
    // One loopback address represents the public internet, another one a private network.
    let lookup = FakeResolver::new(vec![("rebind.example", vec!["127.0.0.1", "127.0.0.2"])]);
    let web = Arc::new(WebClient::with_resolver(
        &settings(&[("BUB_WEB_ALLOW_PRIVATE", "127.0.0.1")]),
        Arc::clone(&lookup) as _,
    ));
    let url = format!("http://rebind.example:{port}/");
    let first = web.fetch(&url, &serde_json::Map::new(), None).await;
    assert_eq!(
        (
            first.unwrap().content.as_str(),
            lookup.request.load(Ordering::SeqCst)
        ),
        ("public", 1)
    );
    let second = web
        .fetch(&url, &serde_json::Map::new(), None)
        .await
        .unwrap_err();
    assert!(
        second
            .message()
            .contains("refused: rebind.example is in a private network"),
        "{second}"
    );
    assert!(
        !second.message().contains("127.0.0.2"),
        "the error must not reveal internal addresses: {second}"
    );
    // A private address among public ones is refused, too.
    let mixed = FakeResolver::new(vec![("mixed.example", vec!["127.0.0.1 127.0.0.2"])]);
    let web = WebClient::with_resolver(&settings(&[("BUB_WEB_ALLOW_PRIVATE", "127.0.0.1")]), mixed);
    assert!(
        fetch(web, &format!("http://mixed.example:{port}/"))
            .await
            .is_err()
    );
    assert!(inside.requests().is_empty());
}

// W-31: a proxy resolves names itself, so they are checked before the request.
#[tokio::test]
async fn proxies_are_used_and_never_asked_for_what_is_private() {
    let proxy = FakeSite::start([("http://far.example/", page("text/plain", b"by proxy"))]);
    let address = proxy.url("");
    let lookup = || {
        let answers = [
            ("inside.example", "10.0.0.7"),
            ("proxy.corp", "127.0.0.1"),
            ("ok.example", "1.1.1.1"),
        ];
        FakeResolver::new(
            answers
                .into_iter()
                .map(|(name, address)| (name, vec![address]))
                .collect(),
        )
    };
    let via = |proxy: &str| WebClient::with_resolver(&settings(&[("HTTP_PROXY", proxy)]), lookup());
    assert_eq!(
        fetch(via(&address), "http://far.example/").await.unwrap(),
        "by proxy"
    );
    // The name of a proxy may resolve to a private address.
    let named = format!("http://proxy.corp:{}", proxy.address.port());
    assert_eq!(
        fetch(via(&named), "http://far.example/").await.unwrap(),
        "by proxy"
    );
    let request = proxy.requests().len();
    let private = [
        "10.0.0.1",
        "169.254.169.254",
        "inside.example",
        "wiki",
        "nas.local",
        "x.internal",
        "localhost",
        "proxy.corp",
    ];
    for host in private {
        let error = fetch(via(&named), &format!("http://{host}/"))
            .await
            .unwrap_err();
        assert!(error.message().contains("refused"), "{host}: {error}");
    }
    assert_eq!(proxy.requests().len(), request);
    // If it is disabled, the proxy gets no requests.
    let off = settings(&[("HTTP_PROXY", address.as_str()), ("BUB_WEB_PROXY", "false")]);
    assert!(
        fetch(
            WebClient::with_resolver(&off, lookup()),
            "http://far.example/"
        )
        .await
        .is_err()
    );
    assert_eq!(proxy.requests().len(), request);
}

// W-31
#[tokio::test]
async fn size_time_and_kind_have_limits() {
    let bomb = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![b'a'; 1024 * 1024];
        for _ in 0..200 {
            encoder.write_all(&zeros).unwrap();
        }
        encoder.finish().unwrap()
    };
    let small = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(b"packed").unwrap();
        encoder.finish().unwrap()
    };
    let packed = |body: &[u8]| {
        http(
            "200 OK",
            "content-type: text/plain\r\ncontent-encoding: gzip\r\n",
            body,
        )
    };
    let endless =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nbegin".to_vec();
    let site = FakeSite::start([
        ("/huge", page("text/plain", &vec![b'x'; 5 * 1024 * 1024])),
        ("/bomb", packed(&bomb)),
        ("/packed", packed(&small)),
        ("/slow", endless),
        ("/pdf", page("application/pdf", b"%PDF-1.7 ...")),
        ("/disguised", page("text/plain", b"\x7fELF\0\0\0")),
        (
            "/untyped",
            http("200 OK", "", b"<!doctype html><p>hi <b>there</b>"),
        ),
        ("/untyped-binary", http("200 OK", "", b"\x89PNG\0\0")),
        (
            "/brotli",
            http(
                "200 OK",
                "content-type: text/plain\r\ncontent-encoding: br\r\n",
                b"?",
            ),
        ),
    ]);
    let local = || web("127.0.0.1");
    let note = "\n\n[truncated: the page is larger than 2 MB]";
    for path in ["/huge", "/bomb"] {
        let text = fetch(local(), &site.url(path)).await.unwrap();
        assert_eq!(text.len(), 2 * 1024 * 1024 + note.len(), "{path}");
        assert!(text.ends_with(note));
    }
    assert_eq!(
        fetch(local(), &site.url("/packed")).await.unwrap(),
        "packed"
    );
    assert_eq!(
        fetch(local(), &site.url("/untyped")).await.unwrap(),
        "hi **there**"
    );
    let cases = [
        (
            "/pdf",
            "127.0.0.1 returned application/pdf (12 bytes), which is not text",
        ),
        ("/disguised", "returned binary data (7 bytes)"),
        ("/untyped-binary", "returned binary data (6 bytes)"),
        ("/brotli", "compressed as `br`"),
    ];
    for (path, expected) in cases {
        let error = fetch(local(), &site.url(path)).await.unwrap_err();
        assert!(error.message().contains(expected), "{path}: {error}");
    }
    let started = Instant::now();
    let error = fetch_with(local(), json!({"url": site.url("/slow"), "timeout": 0.2}))
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "no complete response from 127.0.0.1 within 0.2 s; pass a larger `timeout`"
    );
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn wrong_arguments_are_reported_and_never_echo_secrets() {
    let cases = [
        (
            json!({"url": "ftp://a.example/"}),
            "unsupported URL scheme `ftp`",
        ),
        (
            json!({"url": "file:///etc/passwd"}),
            "unsupported URL scheme `file`",
        ),
        (json!({"url": "example.org"}), "invalid URL `example.org`"),
        (
            json!({"url": "http://user:word@a.example/"}),
            "invalid URL: it contains a user name or password",
        ),
        (
            json!({"url": "http://a.example/", "headers": {"Host": "b.example"}}),
            "invalid header `Host`: it controls the connection",
        ),
        (
            json!({"url": "http://a.example/", "headers": {"proxy-authorization": "x"}}),
            "it controls the connection",
        ),
        (
            json!({"url": "http://a.example/", "headers": {"x-a": "t0p\r\nHost: b"}}),
            "invalid header `x-a`: its value contains",
        ),
        (
            json!({"url": "http://a.example/", "headers": {"a b": "x"}}),
            "invalid header `a b`: its name contains",
        ),
        (json!({"url": "http://a.example/", "timeout": 0}), "above 0"),
        (
            json!({"url": "http://a.example/", "timeout": -1}),
            "above 0",
        ),
    ];
    for (arguments, expected) in cases {
        let error = fetch_with(web(""), arguments.clone()).await.unwrap_err();
        assert!(error.message().contains(expected), "{arguments}: {error}");
        assert!(
            !error.message().contains("t0p") && !error.message().contains("word@"),
            "{error}"
        );
    }
}

#[test]
fn html_becomes_markdown() {
    let base = "https://site.example/dir/page".parse().unwrap();
    let cases = [
        (
            "<h1>One</h1><p>a <b>bold</b> and <em>soft</em>\n word<br>next</p><h2>Two</h2>",
            "# One\n\na **bold** and *soft* word\nnext\n\n## Two",
        ),
        (
            "<ul><li>a<li>b<ol start=3><li>c</li><li><p>d</p></li></ol></ul><p>end",
            "- a\n- b\n  3. c\n  4. d\n\nend",
        ),
        (
            "<a href='../x?a=1&amp;b=2'>link</a> <a href='#top'>top</a> <a href='javascript:x()'>js</a>",
            "[link](https://site.example/x?a=1&b=2) top js",
        ),
        (
            "<img src=/i.png alt='A  pic'><img src=x>",
            "![A pic](https://site.example/i.png)",
        ),
        (
            "<pre class='language-rust'>fn main() {\n    a &lt; b;\n}\n</pre>after",
            "```rust\nfn main() {\n    a < b;\n}\n```\n\nafter",
        ),
        ("use <code>x &amp;&amp; y</code>.", "use `x && y`."),
        (
            "<blockquote><p>said</p><p>more</p></blockquote>",
            "> said\n> \n> more",
        ),
        (
            "<table><tr><th>a<th>b</tr><tr><td>1<td>x | y</td></tr></table>z",
            "| a | b |\n|---|---|\n| 1 | x \\| y |\n\nz",
        ),
        (
            "a<script>if (1 < 2) alert('<p>')</script><style>p{}</style><!-- c --><svg><path/></svg>b",
            "ab",
        ),
        ("<title>Only a title</title>", "# Only a title"),
        ("&copy; &#8364; &#x41; &unknown; &", "© € A &unknown; &"),
        ("<i><b>x</b></i><b></b>", "***x***"),
        ("1 < 2 and <", "1 < 2 and <"),
        ("<p>truncated <a href='", "truncated"),
        ("<script>never closed", ""),
        ("<p title='a > b'>x</p>", "x"),
    ];
    for (html, expected) in cases {
        assert_eq!(html_to_markdown(html, &base), expected, "{html}");
    }
}

#[test]
fn hostile_pages_cost_no_more_than_others() {
    let base = "https://site.example/".parse().unwrap();
    let shapes = [
        "<blockquote><ul><li>x",
        "<a href=x>y",
        "<table><tr><td>z",
        "<b>",
        "<",
        "&",
        "<!--",
        "<a \"",
        "</a>",
        "<pre>\n",
        "<script>",
        "<svg>",
        "<p title='",
    ];
    for shape in shapes {
        let page = shape.repeat(256 * 1024 / shape.len());
        let started = Instant::now();
        let text = html_to_markdown(&page, &base);
        assert!(text.len() < 8 * 1024 * 1024, "{shape}: {}", text.len());
        // Generous for a slow machine; quadratic time would take hours.
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{shape}: {:?}",
            started.elapsed()
        );
    }
}
