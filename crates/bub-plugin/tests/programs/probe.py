"""The probe plugin of plugin.rs in Python. Every hook does the same."""

from bub_sdk import BubError, LlmCallDecision, StreamEvent, ToolCallDecision, content_of, hookimpl, sender, serve, text_of, tool


@tool(name="probe.add", read_only=True)
async def add(a: int, b: int = 1) -> str:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    if a == 13:
        raise BubError("thirteen is not added", "invalid_input")
    return str(a + b)


@tool(name="probe.context")
async def context(context):
    """Returns what it knows about its call."""
    known = {"run_id": context.run_id, "session_id": context.session_id, "role": context.sender.role}
    return {**known, "state": context.state["built"]}


class Probe:
    @hookimpl
    def resolve_session(self, message):
        content = content_of(message)
        if content == "session of a role":
            return message.sender.role
        return content[len("session ") :] if content.startswith("session ") else None

    @hookimpl
    async def load_state(self, session_id):
        return {"probe_session": session_id, "is_same": True, "_runtime_evil": True}

    @hookimpl
    async def build_prompt(self, message, state, next):
        print("printed lines are not messages")
        state["built"] = message.sender.role
        state.pop("doomed", None)
        content = content_of(message)
        if content == "build nothing":
            return None
        if content == "build wrong":
            raise BubError("no prompt today", "invalid_input")
        if content == "build wrapped":
            below = await next()
            return f"<{text_of(below)}>"
        if content == "build other":
            return await next(message={"content": "other"})
        if content == "build panic":
            raise RuntimeError("the probe panics")
        return f"built: {content}"

    @hookimpl
    async def run_model_stream(self, prompt, state, next):
        state["asked"] = True
        text = text_of(prompt)
        if text == "built: many":
            return (f"{number}," for number in range(1000))
        if text == "built: upper":
            return self.upper(next)
        if text == "built: broken":
            return self.broken()
        if text == "built: empty":
            return iter(())
        return None

    async def upper(self, next):
        async for event in next():
            yield StreamEvent.delta(event.text.upper()) if event.kind == "text" else event

    async def broken(self):
        yield "half"
        raise BubError("the probe broke", "provider")

    @hookimpl
    def render_outbound(self, message, model_output):
        if content_of(message) == "render two":
            return [{"content": "one"}, {"content": model_output}]
        return []

    @hookimpl
    def system_prompt(self, prompt):
        return f"probe sees {text_of(prompt)}"

    @hookimpl
    async def before_llm_call(self, request):
        if request.model == "finish":
            return LlmCallDecision.finish("finished")
        return request.replace(model="changed") if request.model == "change" else None

    @hookimpl
    def before_tool_call(self, call, state):
        if call.tool == "deny":
            return ToolCallDecision.deny("no")
        if call.tool == "replace":
            return ToolCallDecision.replace({"instead": 1})
        if call.tool == "change":
            return ToolCallDecision.proceed({"b": 2})
        if call.tool == "turn":
            own = bool(call.run_id) and (sender().channel, sender().chat_id) == ("lab", "1")
            return ToolCallDecision.replace([own, state["session_id"], sender().role])
        if call.tool == "allow":
            return ToolCallDecision.proceed()
        if call.tool == "fail":
            raise BubError("the guard fails", "invalid_input")
        return None

    @hookimpl
    async def after_tool_call(self, result):
        # A plugin for the Python version changes a result in this way.
        if isinstance(result.result, str):
            result.result += "!"

    @hookimpl
    async def admit_message(self, message, turn):
        content = content_of(message)
        if content not in ("process", "drop", "follow_up", "steer"):
            return None
        return {"decision": content, "reason": f"{turn.running_count} running, {message.sender.role}"}

    @hookimpl
    async def provide_model_options(self):
        return {"choices": [{"id": "probe:one", "label": "One"}]}


if __name__ == "__main__":
    serve(Probe)
