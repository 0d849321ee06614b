//! Compares the hook table with the specification.

use bub_kernel::hooks::{HOOKS, HookSpec};

fn row(spec: &HookSpec) -> String {
    let args: Vec<_> = spec.args.iter().map(|arg| arg.name).collect();
    let sync = if spec.sync_only { " sync" } else { "" };
    format!(
        "{} {}{sync} ({})",
        spec.name,
        spec.kind.name(),
        args.join(", ")
    )
}

// S-47, S-51, H-30
#[test]
fn the_table_is_the_one_of_the_specification() {
    let rows: Vec<_> = HOOKS.iter().map(|spec| row(spec)).collect();
    assert_eq!(
        rows,
        [
            "resolve_session first-result (message)",
            "load_state broadcast (message, session_id)",
            "build_prompt first-result (message, session_id, state)",
            "run_model first-result (prompt, session_id, state)",
            "run_model_stream first-result (prompt, session_id, state)",
            // The prompt is an addition, for plugins that record turns. So is the error, which the Python version read
            // from the interpreter.
            "save_state broadcast (session_id, state, message, prompt, model_output, partial_output, error)",
            "render_outbound broadcast (message, session_id, state, model_output)",
            "dispatch_outbound broadcast (message)",
            "register_cli_commands broadcast sync (app)",
            "onboard_config broadcast sync (current_config)",
            "on_error observer (stage, error, message)",
            "system_prompt broadcast sync (prompt, state)",
            "provide_tape_store first-result sync ()",
            "provide_environment first-result (session_id, workspace)",
            "provide_lifespan broadcast sync ()",
            "provide_channels broadcast sync (message_handler)",
            "build_tape_context first-result sync ()",
            "continue_prompt first-result (prompt, tape, state)",
            "provide_model_options broadcast (session_id, workspace)",
            "before_llm_call chain (request, state)",
            "after_llm_call chain (request, result, state)",
            "before_tool_call chain (call, state)",
            "after_tool_call chain (call, result, state)",
            "provide_tape_sidecar broadcast sync ()",
            "admit_message first-result (session_id, message, turn)",
            "provide_steering_inbox first-result sync ()",
            // Not in the Python version.
            "request_approval first-result (request, state)",
            "provide_routes broadcast sync (message_handler)",
            "provide_services broadcast sync ()",
        ]
    );
}

#[test]
fn every_hook_says_what_it_is_for() {
    for spec in HOOKS {
        assert!(
            spec.doc.trim().ends_with('.'),
            "{}: {:?}",
            spec.name,
            spec.doc
        );
        assert!(!spec.result.is_empty());
    }
}

// `bub hooks` and the hook reference show these.
#[test]
fn arguments_and_results_are_written_as_an_author_writes_them() {
    let args = HOOKS
        .iter()
        .flat_map(|spec| spec.args.iter().map(|arg| arg.type_name));
    for text in args.chain(HOOKS.iter().map(|spec| spec.result)) {
        assert!(!text.contains("& ") && !text.contains('\n'), "{text}");
    }
}
