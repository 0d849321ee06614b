//! `bub gateway` with a webhook and a scripted model.

pub(crate) use bub_testkit::gateway::{CallbackServer, GatewayClient, TOKEN, post};
use bub_testkit::model::ModelServer;

use crate::sandbox::{Sandbox, bub};

pub(crate) fn start_gateway(sandbox: &Sandbox, model: &ModelServer) -> GatewayClient {
    start_gateway_with(sandbox, model, &[], &[])
}

pub(crate) fn start_gateway_with(
    sandbox: &Sandbox,
    model: &ModelServer,
    args: &[&str],
    settings: &[(&str, &str)],
) -> GatewayClient {
    let mut command = sandbox.command(&bub());
    command
        .arg("gateway")
        .args(args)
        .env("BUB_MODEL", "openai:small")
        .env("BUB_API_BASE", format!("{}/v1", model.url()))
        .env("BUB_API_KEY", "sk-none-at-all")
        .envs(settings.iter().copied());
    GatewayClient::start(command)
}
