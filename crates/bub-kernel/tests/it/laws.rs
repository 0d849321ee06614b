//! Properties that hold for any registrations and any data.

use std::collections::BTreeMap;

use bub_kernel::{
    Envelope, Inbound, Prompt, StatePatch, StreamEvent,
    hooks::{
        args,
        point::{LoadState, ResolveSession, SystemPrompt},
    },
};
use proptest::{collection::vec, option, prelude::*};
use serde_json::{Map, Value, json};

use crate::support::{FakePlugin, detached, framework, hi};

/// The behavior of one plugin in the hooks under test.
#[derive(Clone, Debug)]
struct FakePluginSpec {
    session: FakeResult,
    state: Option<BTreeMap<String, u8>>,
    system: FakeResult,
    asynchronous: bool,
}

#[derive(Clone, Debug)]
enum FakeResult {
    NotImplemented,
    Returns(Option<String>),
}

impl FakeResult {
    fn result(&self) -> Option<&Option<String>> {
        match self {
            Self::NotImplemented => None,
            Self::Returns(result) => Some(result),
        }
    }
}

fn fake_result(pattern: &'static str) -> impl Strategy<Value = FakeResult> {
    option::of(option::of(pattern))
        .prop_map(|fake_result| fake_result.map_or(FakeResult::NotImplemented, FakeResult::Returns))
}

fn plugin_spec() -> impl Strategy<Value = FakePluginSpec> {
    let session = fake_result("[a-c]{1,2}");
    let state = option::of(prop::collection::btree_map("[k-n]", any::<u8>(), 0..4));
    let system = fake_result("[x-z]{0,2}");
    (session, state, system, any::<bool>()).prop_map(|(session, state, system, asynchronous)| {
        FakePluginSpec {
            session,
            state,
            system,
            asynchronous,
        }
    })
}

impl FakePluginSpec {
    fn plugin(&self) -> FakePlugin {
        let mut fake = FakePlugin::new();
        if let Some(result) = self.session.result().cloned() {
            let hook = move |_: bub_kernel::hooks::HookCall<'_, ResolveSession>| Ok(result.clone());
            fake = if self.asynchronous {
                fake.on_async(hook)
            } else {
                fake.on(hook)
            };
        }
        if let Some(fields) = self.state.clone() {
            let patch = move |_: bub_kernel::hooks::HookCall<'_, LoadState>| {
                let patch = fields
                    .iter()
                    .fold(StatePatch::new(), |patch, (name, value)| {
                        patch.with(name.clone(), *value)
                    });
                Ok(Some(patch))
            };
            fake = if self.asynchronous {
                fake.on_async(patch)
            } else {
                fake.on(patch)
            };
        }
        if let Some(result) = self.system.result().cloned() {
            let hook = move |_: bub_kernel::hooks::HookCall<'_, SystemPrompt>| Ok(result.clone());
            fake = if self.asynchronous {
                fake.on_async(hook)
            } else {
                fake.on(hook)
            };
        }
        fake
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(work)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn json_object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-z_]{0,8}", json_value(), 0..6)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    // S-42, S-43
    #[test]
    fn first_and_many_follow_registration_backwards(scripts in vec(plugin_spec(), 0..6)) {
        let set = framework(scripts.iter().map(FakePluginSpec::plugin));
        let inbound = Inbound::from(hi());
        let args = args::ResolveSession { message: &inbound.message, inbound: &inbound };
        let expected: Vec<_> = scripts.iter().rev().filter_map(|plugin_spec| plugin_spec.session.result().cloned()).collect();
        let first = expected.iter().flatten().next().cloned();
        prop_assert_eq!(block_on(set.hooks().call_all::<ResolveSession>(args)).unwrap(), expected);
        prop_assert_eq!(block_on(set.hooks().call_first::<ResolveSession>(args)).unwrap(), first);
    }

    // S-46
    #[test]
    fn the_sync_variants_are_the_same_without_the_async_plugins(scripts in vec(plugin_spec(), 0..6)) {
        let set = framework(scripts.iter().map(FakePluginSpec::plugin));
        let inbound = Inbound::from(hi());
        let args = args::ResolveSession { message: &inbound.message, inbound: &inbound };
        let ready = scripts.iter().rev().filter(|plugin_spec| !plugin_spec.asynchronous);
        let expected: Vec<_> = ready.filter_map(|plugin_spec| plugin_spec.session.result().cloned()).collect();
        let first = expected.iter().flatten().next().cloned();
        prop_assert_eq!(set.hooks().call_all_sync::<ResolveSession>(args).unwrap(), expected);
        prop_assert_eq!(set.hooks().call_first_sync::<ResolveSession>(args).unwrap(), first);
    }

    // S-6
    #[test]
    fn state_is_all_contributions_with_the_latest_on_top(scripts in vec(plugin_spec(), 0..6)) {
        let set = framework(scripts.iter().map(FakePluginSpec::plugin));
        let turn = detached(&set);
        block_on(set.load_state(&turn)).unwrap();
        let mut expected = BTreeMap::new();
        for fields in scripts.iter().filter_map(|plugin_spec| plugin_spec.state.clone()) {
            expected.extend(fields);
        }
        prop_assert_eq!(serde_json::to_value(turn.state().public_fields()).unwrap(), json!(expected));
    }

    // S-51
    #[test]
    fn the_system_prompt_is_the_fragments_in_registration_order(scripts in vec(plugin_spec(), 0..6)) {
        let set = framework(scripts.iter().map(FakePluginSpec::plugin));
        let spoken = scripts.iter().filter(|plugin_spec| !plugin_spec.asynchronous);
        let spoken = spoken.filter_map(|plugin_spec| plugin_spec.system.result().cloned().flatten()).filter(|text| !text.is_empty());
        let expected = spoken.collect::<Vec<_>>().join("\n\n");
        prop_assert_eq!(set.system_prompt(&Prompt::from("x"), &detached(&set)).unwrap(), expected);
    }

    // S-50
    #[test]
    fn envelopes_survive_json(value in json_object()) {
        let envelope: Envelope = serde_json::from_value(value.clone()).unwrap();
        let text = serde_json::to_string(&envelope).unwrap();
        prop_assert_eq!(&text, &serde_json::to_string(&value).unwrap());
        let back: Envelope = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(back.fields(), envelope.fields());
        prop_assert_eq!(serde_json::to_value(Envelope::from_value(value.clone())).unwrap(), value);
    }

    // H-45
    #[test]
    fn stream_events_survive_json(
        kind in prop_oneof![
            Just("text".to_owned()), Just("reasoning".to_owned()), Just("tool_call".to_owned()),
            Just("tool_result".to_owned()), Just("usage".to_owned()), Just("final".to_owned()), "[a-z]{1,8}",
        ],
        data in json_value(),
    ) {
        prop_assume!(kind != "error");
        let once = StreamEvent::from_value(&json!({"kind": kind, "data": data}));
        let value = once.to_value();
        prop_assert_eq!(&value["kind"], &json!(kind));
        let twice = StreamEvent::from_value(&value);
        prop_assert_eq!(twice.to_value(), value);
    }

    // W-55: any error event can be converted, and further conversions do not change it.
    #[test]
    fn error_events_can_always_be_read(data in json_value()) {
        let event = StreamEvent::from_value(&json!({"kind": "error", "data": data}));
        prop_assert!(matches!(event, StreamEvent::Error(_)));
        prop_assert_eq!(StreamEvent::from_value(&event.to_value()).to_value(), event.to_value());
    }

    #[test]
    fn a_batch_is_read_whole(values in vec(json_value(), 0..5)) {
        let expected = values.len();
        prop_assert_eq!(Envelope::from_rendered(Value::from(values)).len(), expected);
    }
}
