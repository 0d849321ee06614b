"""The hooks of the Python version, as pluggy specifications."""

from __future__ import annotations

from typing import Any

import pluggy

BUB_HOOK_NAMESPACE = "bub"
hookspec = pluggy.HookspecMarker(BUB_HOOK_NAMESPACE)
hookimpl = pluggy.HookimplMarker(BUB_HOOK_NAMESPACE)

#: Hooks of which the first result counts, with their arguments.
FIRST_RESULT = {
    "resolve_session": "message",
    "build_prompt": "message session_id state",
    "run_model": "prompt session_id state",
    "run_model_stream": "prompt session_id state",
    "continue_prompt": "prompt tape state",
    "provide_environment": "session_id workspace",
    "provide_tape_store": "",
    "build_tape_context": "",
    "admit_message": "session_id message turn",
    "provide_steering_inbox": "",
}
#: Hooks that are called for every plugin, with their arguments.
BROADCAST = {
    "load_state": "message session_id",
    "save_state": "session_id state message model_output",
    "render_outbound": "message session_id state model_output",
    "dispatch_outbound": "message",
    "register_cli_commands": "app",
    "onboard_config": "current_config",
    "provide_model_options": "session_id workspace",
    "on_error": "stage error message",
    "before_llm_call": "request state",
    "after_llm_call": "request result state",
    "before_tool_call": "call state",
    "after_tool_call": "call result state",
    "system_prompt": "prompt state",
    "provide_lifespan": "",
    "provide_tape_sidecar": "",
    "provide_channels": "message_handler",
}


def _specification(name: str, arguments: str, is_first: bool) -> Any:
    # pluggy reads the arguments from the signature.
    scope: dict[str, Any] = {}
    exec(f"def {name}(self, {', '.join(arguments.split())}): ...", scope)  # noqa: S102 - the names are above
    return hookspec(firstresult=is_first)(scope[name])


BubHookSpecs = type(
    "BubHookSpecs",
    (),
    {
        name: _specification(name, arguments, kind is FIRST_RESULT)
        for kind in (FIRST_RESULT, BROADCAST)
        for name, arguments in kind.items()
    },
)
