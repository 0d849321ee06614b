//! Selection, start and stop of channels.

use std::{sync::Arc, time::Duration};

use bub_gateway::{select_channels, status};
use bub_kernel::{Channel, ChannelRole, Error};
use serde_json::json;

use crate::harness::{Echo, FakeChannel, GatewayFixture, options};

// H-141: which names select which channels.
#[test]
fn names_choose_channels() {
    let make = |name: &str, role, disabled| {
        Arc::new(FakeChannel {
            role: Some(role),
            disabled,
            ..FakeChannel::new(name)
        }) as Arc<dyn Channel>
    };
    let channels = [
        make("cli", ChannelRole::Interface, false),
        make("a", ChannelRole::Service, false),
        make("off", ChannelRole::Service, true),
        make("b", ChannelRole::Service, false),
        make("clock", ChannelRole::Lifecycle, false),
        make("sweep", ChannelRole::Lifecycle, false),
    ];
    let cases: &[(&[&str], &[&str])] = &[
        (&["all"], &["a", "b", "clock", "sweep"]),
        (&["all", "!b"], &["a", "clock", "sweep"]),
        (&[" b ", "a"], &["a", "b", "clock", "sweep"]),
        (&["b", "!clock"], &["b", "sweep"]),
        (&["cli"], &["cli", "clock", "sweep"]),
        (&["clock"], &["clock"]),
        (&["off"], &[]),
        (&[], &[]),
    ];
    for (names, expected) in cases {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let selected = select_channels(&names, &channels);
        let selected: Vec<_> = selected.iter().map(|channel| channel.name()).collect();
        assert_eq!(&selected, expected, "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_names_and_no_channel_are_said_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let open = |names: &'static [&'static str]| {
        GatewayFixture::try_with(
            options(dir.path()),
            Echo::new(vec![FakeChannel::new("lab")]),
            names,
        )
    };
    let unknown = open(&["lap"]).await.err().unwrap();
    assert!(
        unknown
            .message()
            .starts_with("unknown channel `lap`; available channels: lab"),
        "{unknown}"
    );
    // A name that is excluded need not exist, and one unknown name does not stop the others.
    open(&["lab", "!cli", "lap"]).await.unwrap().stop().await;
    let none = open(&["!lab"]).await.err().unwrap();
    assert!(
        none.message()
            .starts_with("no channel is enabled; configure lab, or set `enabled_channels`"),
        "{none}"
    );
    let fixture = open(&["all"]).await.unwrap();
    let second = open(&["all"]).await.err().unwrap();
    assert!(
        second.message().contains("another gateway runs there"),
        "{second}"
    );
    fixture.stop().await;
}

// W-50: a channel that cannot start is retried and shown. One that hangs does not delay the others. All are stopped.
#[tokio::test(start_paused = true)]
async fn channels_start_independently() {
    let dir = tempfile::tempdir().unwrap();
    let failing = FakeChannel::new("failing");
    *failing.start_failures.lock().unwrap() =
        vec![Error::unknown("port in use"), Error::unknown("port in use")];
    let stuck = FakeChannel {
        blocks_in_start: true,
        ..FakeChannel::new("stuck")
    };
    let fixture =
        GatewayFixture::open(dir.path(), vec![failing, stuck, FakeChannel::new("fine")]).await;
    fixture.channel(2).say("a", "hi").await.unwrap();
    assert_eq!(fixture.channel(2).wait_sent(1).await[0].content, "echo: hi");
    let failing = Arc::clone(fixture.channel(0));
    let path = dir.path();
    let state = |name: &'static str| async move {
        let status = status::send_request(path, &json!({"do": "status"}))
            .await
            .unwrap()
            .unwrap();
        let channels = status["channels"].as_array().unwrap().clone();
        channels
            .into_iter()
            .find(|channel| channel["name"] == name)
            .unwrap()
    };
    failing
        .starts
        .subscribe()
        .wait_for(|starts| *starts == 3)
        .await
        .unwrap();
    let failing_state = state("failing").await;
    assert_eq!(
        (&failing_state["state"], &failing_state["last_error"]),
        (&json!("running"), &json!("port in use"))
    );
    assert_eq!(state("stuck").await["state"], "starting");
    failing.say("a", "late").await.unwrap();
    assert_eq!(failing.wait_sent(1).await[0].content, "echo: late");
    let fakes = fixture.echo.channels.clone();
    fixture.stop().await;
    assert!(fakes.iter().all(|fake| *fake.stops.borrow() > 0));
}

// Only the owner can use the socket. It is removed when the gateway stops.
#[tokio::test]
async fn the_status_socket_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let path = dir.path().join("status.sock");
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(
        status::send_request(dir.path(), &json!({"do": "nonsense"}))
            .await
            .is_err()
    );
    let status = status::send_request(dir.path(), &json!({"do": "status"}))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(status["unfinished"], 0);
    fixture.stop().await;
    assert!(!path.exists());
}

// W-14: a stop waits for running turns, but only up to the limit. The rest is answered once, after the next start.
#[tokio::test(start_paused = true)]
async fn a_stop_drains_within_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    let channel = Arc::clone(fixture.channel(0));
    channel.say("a", "wait 1").await.unwrap();
    channel.say("a", "2").await.unwrap();
    channel.say("b", "wait 3").await.unwrap();
    fixture.echo.wait_asked(2).await;
    fixture.echo.permits.add_permits(1);
    let started = tokio::time::Instant::now();
    fixture.stop().await;
    assert!(started.elapsed() >= Duration::from_secs(30));
    assert!(
        started.elapsed() < Duration::from_secs(40),
        "{:?}",
        started.elapsed()
    );
    let refused = channel.say("a", "late").await.err().unwrap();
    assert!(
        refused.message().contains("stopping") || refused.message().contains("not running"),
        "{refused}"
    );
    let before = channel.contents();
    let fixture = GatewayFixture::open(dir.path(), vec![FakeChannel::new("lab")]).await;
    fixture.echo.permits.add_permits(10);
    let remaining = 3 - before.len();
    assert_eq!(fixture.recovered.messages, remaining);
    let mut all = fixture
        .channel(0)
        .wait_sent(remaining)
        .await
        .iter()
        .map(|sent| sent.content.clone())
        .collect::<Vec<_>>();
    all.extend(before);
    all.sort();
    assert_eq!(all, ["echo: 2", "echo: wait 1", "echo: wait 3"]);
    fixture.stop().await;
}
