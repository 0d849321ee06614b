use bub_kernel::{Envelope, Framework, PluginContext, State};

struct Client;

fn lookups(framework: &Framework, context: &PluginContext<'_>, state: &State, message: &Envelope) {
    framework.service::<Client>();
    context.service::<Client>();
    state.slot::<Client>();
    message.slot::<Client>();
}

fn main() {}
