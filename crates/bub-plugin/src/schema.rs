//! The plugin protocol as a JSON Schema, generated from the hook table.

use serde_json::{Map, Value, json};

use crate::{
    callbacks::HOST_METHODS,
    codec::Wire,
    descriptor::PROTOCOL_VERSION,
    wire_hook::{hook_schemas, unsupported_reason},
};
use bub_kernel::Sender;

/// Returns the JSON Schema of the plugin protocol: the parameters and the result of each supported hook.
pub fn protocol_schema() -> Value {
    let hooks: Map<_, _> = hook_schemas()
        .into_iter()
        .filter(|(name, _)| unsupported_reason(name).is_none())
        .map(|(name, hook)| (format!("hook/{name}"), method_schema(&hook)))
        .collect();
    let host_methods: Map<_, _> = HOST_METHODS
        .iter()
        .map(|(name, params, since)| {
            let params: Map<_, _> = params
                .iter()
                .map(|name| ((*name).to_owned(), json!({})))
                .collect();
            let params = json!({"type": "object", "properties": params});
            (
                (*name).to_owned(),
                json!({"type": "object", "properties": {"params": params}, "x-since": since}),
            )
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("bub plugin protocol {PROTOCOL_VERSION}"),
        "description": "`params` and `result` of the host's hook requests, by method. `x-host-methods`: the plugin's requests and notifications, each with the version of the protocol that has it.",
        "type": "object",
        "properties": hooks,
        "x-host-methods": host_methods,
    })
}

/// Returns the JSON Schema of the request and the response of one hook.
fn method_schema(hook: &Value) -> Value {
    let patch = json!({
        "type": "object",
        "properties": {"set": {"type": "object"}, "remove": {"type": "array", "items": {"type": "string"}}},
    });
    // No argument is required: a plugin can select the arguments it receives.
    let args =
        json!({"type": "object", "properties": hook.get("args"), "additionalProperties": false});
    let params = json!({
        "type": "object",
        "properties": {"args": args, "sender": Sender::schema(), "credits": {"type": "integer"}},
        "required": ["args"],
    });
    let answer = json!({"type": ["object", "null"], "properties": {"value": hook.get("value"), "state": patch}});
    json!({"type": "object", "properties": {"params": params, "result": answer}})
}
