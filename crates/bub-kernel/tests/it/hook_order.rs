//! The order and the time limits that plugins ask for.

use std::{sync::Arc, time::Duration};

use bub_kernel::{
    BoxFuture, Envelope, Framework, Inbound, Plugin,
    hooks::{
        AsyncHook, HookCall, HookOptions, HookOrder, HookReturn, HookSet, args,
        point::ResolveSession,
    },
};

/// Answers with its name after a delay.
struct Named {
    name: &'static str,
    options: HookOptions,
    delay: Duration,
}

fn named(name: &'static str, order: HookOrder) -> Named {
    let mut options = HookOptions::default();
    options.order = order;
    Named {
        name,
        options,
        delay: Duration::ZERO,
    }
}

impl Plugin for Named {
    fn register(self: Arc<Self>, hooks: &mut HookSet) {
        let options = self.options;
        hooks.add_async::<ResolveSession>(Answer(self));
        hooks.set_last_options::<ResolveSession>(options);
    }
}

struct Answer(Arc<Named>);

impl AsyncHook<ResolveSession> for Answer {
    fn call<'a>(&'a self, call: HookCall<'a, ResolveSession>) -> BoxFuture<'a, HookReturn<String>> {
        Box::pin(async move {
            tokio::time::sleep(self.0.delay).await;
            let below = call.next().call().await?.unwrap_or_default();
            Ok(Some(format!("{} {below}", self.0.name)))
        })
    }
}

async fn order_of(plugins: Vec<Named>) -> bub_kernel::Result<String> {
    let mut builder = Framework::builder();
    for plugin in plugins {
        builder = builder.plugin(plugin.name, plugin);
    }
    let framework = builder.build();
    let inbound = Inbound::new(Envelope::from_text("hello"));
    let args = args::ResolveSession::new(&inbound.message, &inbound);
    let order = framework.hooks().call_first::<ResolveSession>(args).await?;
    Ok(order.unwrap_or_default().trim().to_owned())
}

// P-102
#[tokio::test]
async fn first_and_last_run_before_and_after_all_others() {
    let order = order_of(vec![
        named("builtin", HookOrder::Registration),
        named("early", HookOrder::First),
        named("late", HookOrder::Last),
        named("later", HookOrder::Last),
        named("normal", HookOrder::Registration),
    ]);
    assert_eq!(order.await.unwrap(), "early normal builtin late later");
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_take_as_long_as_its_own_limit() {
    let slow = |limit: Option<Duration>| {
        let mut plugin = named("slow", HookOrder::Registration);
        plugin.delay = Duration::from_secs(400);
        plugin.options.time_limit = limit;
        order_of(vec![plugin])
    };
    assert!(slow(None).await.is_err());
    assert_eq!(slow(Some(Duration::from_secs(500))).await.unwrap(), "slow");
}
