//! Measures hook calls of an external plugin: sequential calls, and calls from 16 concurrent callers.
//!
//! Run `cargo bench -p bub-plugin --bench roundtrip [-- PROGRAM …]`. The program must implement `resolve_session`, as
//! the test program `probe` does.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a bench"
)]

use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Instant};

use bub_kernel::{
    Envelope, Error, Framework, Inbound, PluginContext, Role,
    hooks::{args, point},
};
use bub_plugin::{ExternalPlugin, HostContext, Limits, PluginConfig, PluginProcess};
use bub_settings::{Environment, Loader};
use bub_testkit::bench_output::{cpu_time, print_figure, print_time};

const SEQUENTIAL_CALLS: usize = 20_000;
const CONCURRENT_CALLS: usize = 200_000;
const CALLERS: usize = 16;

fn framework(command: Vec<OsString>) -> Framework {
    let make = move |context: &PluginContext<'_>| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let environment =
            Environment::from_pairs([("BUB_HOME", OsString::from("/nowhere")), ("PATH", path)]);
        let host = HostContext {
            framework: context.framework.clone(),
            workspace: context.workspace.to_owned(),
            settings: Arc::new(Loader::new(environment).load().unwrap()),
            launcher: None,
            question_handler: None,
            group: bub_plugin::PluginGroup::default(),
        };
        let plugin_config = PluginConfig {
            name: "bench".to_owned(),
            command,
            directory: std::env::current_dir().unwrap(),
            granted: Vec::new(),
            permissions: None,
            config: serde_json::Value::Null,
            fingerprint: String::new(),
            is_stale: false,
            home_files: Vec::new(),
            limits: Limits::default(),
            max_role: Role::Member,
            pinned: PathBuf::new(),
            digest: None,
        };
        let descriptor = PluginProcess::request_descriptor(plugin_config.clone(), host.clone())?;
        Ok::<_, Error>(ExternalPlugin::new(
            PluginProcess::new(plugin_config, descriptor, host),
            context,
        ))
    };
    Framework::builder().plugin_with("bench", make).build()
}

async fn call(framework: &Framework, inbound: &Inbound) {
    let args = args::ResolveSession {
        message: &inbound.message,
        inbound,
    };
    let answer = framework
        .hooks()
        .call_first::<point::ResolveSession>(args)
        .await
        .unwrap();
    assert_eq!(answer.as_deref(), Some("bench"));
}

async fn measure(framework: &Framework) {
    let message = Envelope::from_text("session bench")
        .with("channel", "lab")
        .with("chat_id", "1");
    let message = Inbound::new(message);
    for _ in 0..100 {
        call(framework, &message).await;
    }
    let mut durations = Vec::with_capacity(SEQUENTIAL_CALLS);
    for _ in 0..SEQUENTIAL_CALLS {
        let started = Instant::now();
        call(framework, &message).await;
        durations.push(started.elapsed());
    }
    durations.sort_unstable();
    let percentile = |share: usize| {
        durations
            .get(durations.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    for (name, share) in [("best", 0), ("median", 50), ("p99", 99)] {
        print_time(&format!("call_{name}"), percentile(share));
    }
    let cpu_before = cpu_time();
    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (framework, message) = (framework.clone(), message.clone());
        callers.spawn(async move {
            for _ in 0..CONCURRENT_CALLS / CALLERS {
                call(&framework, &message).await;
            }
        });
    }
    callers.join_all().await;
    let rate = CONCURRENT_CALLS as f64 / started.elapsed().as_secs_f64();
    print_figure(&format!("calls_of_{CALLERS}_callers"), rate, "1/s");
    print_time(
        "host_cpu_of_a_call",
        cpu_time().saturating_sub(cpu_before) / u32::try_from(CONCURRENT_CALLS).unwrap(),
    );
}

fn main() {
    let command_args: Vec<OsString> = std::env::args_os()
        .skip(1)
        .filter(|arg| arg != "--bench" && arg != "--quick")
        .collect();
    let command = if command_args.is_empty() {
        // Cargo builds examples next to the bench.
        let own = std::env::current_exe().unwrap();
        vec![
            own.parent()
                .unwrap()
                .parent()
                .unwrap()
                .join("examples/probe")
                .into(),
        ]
    } else {
        command_args
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure(&framework(command)));
}
