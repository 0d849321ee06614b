"""The package, through the protocol: this is the host, the plugin is a program."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from bub_sdk import schema  # noqa: E402


class Host:
    """Talks to a plugin."""

    def __init__(self, target="sample:Sample", config=None, directory=HERE, max_protocol=1):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        self.errors = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "bub_sdk", target]
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(HERE)}
        self.program = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=self.errors, cwd=directory, env=environment
        )
        theirs.close()
        self.lines = self.socket.makefile("rb")
        self.last = 0
        versions = {"protocol": 1, "max_protocol": max_protocol}
        self.described = self.ask("initialize", **versions, name="s", workspace="/w", config=config or {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends the conversation; how the program ended."""
        if self.socket.fileno() >= 0:
            self.socket.shutdown(socket.SHUT_RDWR)
            self.lines.close()
            self.socket.close()
        code = self.program.wait(60)
        self.errors.seek(0)
        self.said = self.errors.read().decode()
        self.errors.close()
        return code

    def send(self, **message):
        self.socket.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def start(self, method, **params):
        self.last += 1
        self.send(id=self.last, method=method, params=params)
        return self.last

    def notify(self, method, **params):
        self.send(method=method, params=params)

    def read(self):
        return json.loads(self.lines.readline())

    def ask(self, method, **params):
        """A request; its response."""
        id = self.start(method, **params)
        answer = self.read()
        assert answer.get("id") == id and "method" not in answer, answer
        return answer.get("result", answer.get("error"))

    def expect(self, method):
        """A request or notification of the plugin."""
        message = self.read()
        assert message.get("method") == method, message
        return message

    def hook(self, name, **args):
        return self.ask(f"hook/{name}", args=args)


class Description(unittest.TestCase):
    def test_what_a_plugin_has_is_found_by_its_marks(self):
        with Host() as host:
            hooks = {hook["name"]: hook for hook in host.described["hooks"]}
            self.assertEqual(hooks["build_prompt"]["args"], ["message", "session_id", "state"])
            self.assertEqual(hooks["load_state"], {"name": "load_state", "args": ["message"]})
            self.assertEqual(hooks["before_tool_call"], {"name": "before_tool_call", "observe_only": True})
            self.assertNotIn("provide_channels", hooks)
            shout, turn, _ = host.described["tools"]
            self.assertEqual(shout["description"], "Makes a text loud.")
            self.assertEqual(
                shout["inputSchema"],
                {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string", "description": "What is made loud."},
                        "times": {"type": "integer", "description": "How often.", "default": 1},
                        "marks": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                    },
                    "required": ["text"],
                },
            )
            self.assertEqual(turn["inputSchema"], {"type": "object", "properties": {}})
            annotations = {"readOnlyHint": False, "commandOnly": True, "exposure": "command", "deferred": False}
            self.assertEqual(turn["annotations"], annotations)
            channel = {"name": "lab", "debounce": True, "events": True}
            self.assertEqual(host.described["channels"], [channel])
            greet, leave = host.described["commands"]
            self.assertEqual((greet["about"], leave["about"]), ("Greets users", "Leaves."))
            flags = [(arg["name"], arg["positional"], arg["flag"], arg.get("default")) for arg in greet["args"]]
            expected = [("name", True, False, None), ("loud", False, True, None), ("how-often", False, False, "1")]
            self.assertEqual(flags, expected)

    def test_a_plugin_that_cannot_be_made_says_why(self):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "bad.py"), "w") as file:
                file.write("import nothing_like_this\n")
            with Host("bad", directory=directory) as host:
                self.assertEqual(host.described["message"], "ModuleNotFoundError: No module named 'nothing_like_this'")


class Hooks(unittest.TestCase):
    def test_what_is_printed_goes_to_the_log(self):
        host = Host(config={"word": "please"})
        self.assertEqual(host.hook("system_prompt", prompt="p", state={}), {"value": "/w please"})
        host.notify("shutdown")
        self.assertEqual(host.end(), 0)
        for printed in ("printed while it is imported", "printed\n", "written", "by a child"):
            self.assertIn(printed, host.said)

    def test_a_plain_function_that_waits_holds_up_nobody(self):
        with Host() as host:
            args = {"message": {"content": "x"}, "session_id": "s", "state": {}}
            call = host.start("hook/build_prompt", args=args, sender={"role": "owner"})
            asked = host.expect("ui/ask")
            self.assertEqual(asked["params"], {"question": "Who?", "default": "me", "call": call})
            self.assertEqual(host.ask("ping"), {})
            self.assertEqual(host.hook("before_tool_call", call={"tool": "a"}, state={}), {})
            host.send(id=asked["id"], result={"answer": "you"})
            below = host.expect("next/call")
            self.assertEqual(below["params"], {"call": call, "args": {"session_id": "other"}})
            host.send(id=below["id"], result={"value": "below"})
            self.assertEqual(host.read()["result"], {"value": "you owner below"})

    def test_the_host_is_asked_with_await(self):
        with Host() as host:
            call = host.start("hook/load_state", args={"message": {}})
            query = host.expect("tape/query")
            self.assertEqual(query["params"], {"text": "x", "limit": 3, "call": call})
            host.send(id=query["id"], result={"entries": [1, 2]})
            append = host.expect("tape/append")
            self.assertEqual(append["params"], {"name": "seen", "data": {"n": 2}, "call": call})
            host.send(id=append["id"], result={"id": 9})
            sent = host.expect("message/send")
            host.send(id=sent["id"], result={"delivered": True})
            self.assertEqual(host.read()["result"], {"value": {"event": 9, "sent": True}})

    def test_only_what_changed_of_the_state_is_sent(self):
        with Host() as host:
            state = {"same": {"a": 1}, "list": [1], "flag": 1, "old": 0}
            error = {"kind": "provider", "message": "no"}
            answer = host.hook("save_state", state=state, error=error)
            changed = {"new": True, "list": [1, 2], "flag": True, "error": "provider: no"}
            self.assertEqual(answer, {"state": {"set": changed, "remove": ["old"]}})
            answer = host.hook("before_llm_call", request={}, state={})
            self.assertIn("state['thing'] is a object, which cannot leave the plugin", answer["message"])

    def test_failures_are_errors_and_nothing_more(self):
        with Host() as host:
            for prompt, message, kind in [
                ("x", "ValueError: what a prompt", "unknown"),
                ("exit", "SystemExit: 3", "unknown"),
                ("nan", "cannot send the value as JSON: ", "invalid_input"),
            ]:
                error = host.hook("run_model", prompt=prompt)
                self.assertTrue(error["message"].startswith(message), error)
                self.assertEqual(error["data"]["kind"], kind)
            self.assertEqual(host.ask("hook/nothing")["data"]["kind"], "not_found")
            host.socket.sendall(b"no message\n[]\n\n")
            self.assertEqual(host.ask("ping"), {})

    def test_a_cancelled_hook_ends_without_an_answer(self):
        with Host() as host:
            call = host.start("hook/run_model", args={"prompt": "wait"})
            self.assertEqual(host.ask("ping"), {})
            host.notify("$/cancelRequest", id=call)
            self.assertEqual(host.expect("log")["params"], {"level": "info", "message": "cancelled"})
            self.assertEqual(host.ask("ping"), {})


class Streams(unittest.TestCase):
    def events(self, host, count):
        return [host.expect("stream/event")["params"]["event"] for _ in range(count)]

    def start(self, host, prompt, credits):
        args = {"prompt": prompt, "state": {}}
        return host.start("hook/run_model_stream", args=args, credits=credits)

    def test_no_more_events_than_there_are_credits(self):
        with Host() as host:
            call = self.start(host, "a b c", 2)
            texts = [event["data"]["delta"] for event in self.events(host, 2)]
            self.assertEqual(texts, ["a", "b"])
            self.assertEqual(host.ask("ping"), {})
            host.notify("stream/credit", id=call, credits=5)
            self.assertEqual(self.events(host, 1)[0], {"kind": "text", "data": {"delta": "c"}})
            self.assertEqual(host.read()["result"], {"stream": True})

    def test_what_is_below_is_read_with_credits(self):
        with Host() as host:
            call = self.start(host, "all below", 1000)
            below = host.expect("next/call")
            self.assertEqual(below["params"], {"call": call, "args": {}, "credits": 64})
            for number in range(40):
                host.notify("stream/event", id=below["id"], event={"kind": "usage", "data": {"n": number}})
            host.send(id=below["id"], result={"stream": True})
            messages = [host.read() for _ in range(42)]
            credit = [m["params"] for m in messages if m.get("method") == "stream/credit"]
            self.assertEqual(credit, [{"id": below["id"], "credits": 32}])
            numbers = [m["params"]["event"]["data"]["n"] for m in messages if m.get("method") == "stream/event"]
            self.assertEqual(numbers, list(range(40)))
            self.assertEqual(messages[-1]["result"], {"stream": True})

    def test_what_is_below_is_cancelled_when_it_is_not_read_to_its_end(self):
        with Host() as host:
            self.start(host, "first below", 10)
            below = host.expect("next/call")
            self.assertEqual(below["params"]["args"], {"prompt": "below"})
            for text in ("one", "two"):
                host.notify("stream/event", id=below["id"], event={"kind": "text", "data": {"delta": text}})
            rest = [host.read() for _ in range(3)]
            self.assertEqual(rest[0]["params"]["event"]["data"], {"delta": "one"})
            cancelled = [m["params"] for m in rest if m.get("method") == "$/cancelRequest"]
            self.assertEqual(cancelled, [{"id": below["id"]}])
            ended = [m["result"] for m in rest if "result" in m]
            self.assertEqual(ended, [{"stream": True, "state": {"set": {"read": "one"}, "remove": []}}])

    def test_an_error_below_is_an_error_here(self):
        with Host() as host:
            self.start(host, "all below", 10)
            below = host.expect("next/call")
            error = {"code": 1, "message": "x", "data": {"kind": "provider", "message": "it broke"}}
            host.send(id=below["id"], error=error)
            self.assertEqual(host.read()["error"]["data"], {"kind": "provider", "message": "it broke"})


class Parts(unittest.TestCase):
    def test_tools_are_called_with_arguments_of_their_types(self):
        with Host() as host:
            def call(name, meta=None, **arguments):
                answer = host.ask("tools/call", name=name, arguments=arguments, _meta=meta or {})
                return answer["content"][0]["text"], answer.get("isError", False)

            self.assertEqual(call("shout", text="a", times="2"), ("AA!", False))
            self.assertEqual(call("shout", text=5, marks="?", times=None), ("5?", False))
            wrong = "Tool 'shout' argument validation failed. argument 'text' is missing; "
            wrong += "argument 'times': expected a whole number, got \"x\"; "
            wrong += "unknown argument 'y' of shout; it takes text, times, marks"
            self.assertEqual(call("shout", times="x", y=1), (wrong, True))
            self.assertEqual(call("broken"), ("KeyError: 'where'", True))
            meta = {"run_id": "r", "state": {"mood": "calm"}, "sender": {"role": "owner"}}
            answer = host.ask("tools/call", name="about.turn", arguments={}, _meta=meta)
            self.assertEqual(answer["structuredContent"], {"run": "r", "mood": "calm", "role": "owner"})

    def test_a_command_prints_to_whoever_runs_it(self):
        with Host() as host:
            host.start("cli/run", command="greet", credits=1, args={"name": "Ada", "loud": True, "how-often": "2"})
            printed = {"stdout": "", "stderr": ""}
            while "result" not in (message := host.read()):
                for name, text in message["params"]["event"].items():
                    printed[name] += text
                host.notify("stream/credit", id=host.last, credits=1)
            self.assertEqual(printed, {"stdout": "Hello, ADA!\nHello, ADA!\n", "stderr": "done\n"})
            self.assertEqual(message["result"], {"code": 3})
            host.start("cli/run", command="leave", credits=9, args={})
            self.assertEqual(host.expect("stream/event")["params"]["event"], {"stderr": "gone\n"})
            self.assertEqual(host.read()["result"], {"code": 1})

    def test_a_channel_receives_and_sends(self):
        with Host() as host:
            start = host.start("channel/start", channel="lab")
            inbound = host.expect("channel/inbound")
            sender = {"id": "7", "role": "member"}
            message = {"content": "started", "chat_id": "1"}
            self.assertEqual(inbound["params"], {"channel": "lab", "message": message, "sender": sender})
            host.send(id=inbound["id"], result={"accepted": True})
            self.assertEqual(host.read()["id"], start)
            failed = host.ask("channel/send", channel="lab", message={"content": "later"})
            self.assertEqual(failed["data"], {"kind": "temporary", "message": "not now"})
            host.start("channel/send", channel="lab", message={"content": "now"})
            self.assertEqual(host.expect("log")["params"]["message"], "sent now")
            self.assertEqual(host.read()["result"], None)
            event = {"kind": "text", "data": {"delta": "piece"}}
            host.notify("channel/event", channel="lab", event=event, message={"content": "m"})
            self.assertEqual(host.expect("log")["params"]["message"], "piece for m")
            host.start("channel/stop", channel="lab")
            self.assertEqual(host.expect("log")["params"]["message"], "stopped: True")

    def test_the_end_of_its_input_ends_it_whatever_it_does(self):
        host = Host()
        args = {"message": {}, "session_id": "s", "state": {}}
        host.start("hook/build_prompt", args=args)
        host.expect("ui/ask")
        self.assertEqual(host.end(), 0)


class Provided(unittest.TestCase):
    def test_version_2_has_objects_order_limits_and_schemas(self):
        with Host("keeper:Keeper", max_protocol=2) as host:
            self.assertEqual(host.described["protocol"], 2)
            hooks = {hook["name"]: hook for hook in host.described["hooks"]}
            self.assertEqual(hooks["provide_tape_store"]["order"], "first")
            self.assertEqual(hooks["provide_steering_inbox"]["timeout_seconds"], 60)
            (tool,) = host.described["tools"]
            self.assertEqual((tool["outputSchema"], tool["annotations"]["exposure"]), ({"type": "object"}, "direct"))
            self.assertEqual(host.described["commands"], [{"name": "echo", "about": "Print the arguments and the lines of stdin.", "raw": True}])
        with Host("keeper:Keeper", max_protocol=1) as host:
            self.assertEqual(host.described["protocol"], 1)

    def test_a_store_an_inbox_and_a_selector_answer_the_host(self):
        with Host("keeper:Keeper", max_protocol=2) as host:
            self.assertEqual(host.hook("provide_tape_store"), {"value": {"provided": True}})
            self.assertIsNone(host.ask("store/append", tape="t", entries=[{"kind": "event"}]))
            self.assertEqual(host.ask("store/list"), {"tapes": ["t"]})
            self.assertEqual(host.ask("store/read", tape="t"), {"entries": [{"kind": "event"}]})
            self.assertIsNone(host.ask("store/reset", tape="t"))
            self.assertEqual(host.ask("store/list"), {"tapes": []})
            self.assertIsNone(host.ask("store/close"))
            self.assertEqual(host.hook("provide_steering_inbox"), {"value": {"provided": True}})
            self.assertEqual(host.ask("steering/enqueue", session_id="s", message={"content": "x"}), {"accepted": True})
            self.assertEqual(host.ask("steering/drain", session_id="s"), {"messages": [{"content": "x"}]})
            self.assertEqual(host.hook("build_tape_context"), {"value": {"anchor": "last", "select": True}})
            self.assertEqual(host.ask("tape/select", entries=[{}, {}]), {"messages": [{"role": "user", "content": "2"}]})

    def test_an_environment_runs_commands_and_has_files(self):
        with Host("keeper:Keeper", max_protocol=2) as host:
            self.assertEqual(host.hook("provide_environment", session_id="other"), {})
            provided = host.hook("provide_environment", session_id="boxed")
            self.assertEqual(provided, {"value": {"id": "boxed", "workspace": "/box"}})
            host.start("environment/run", environment="boxed", command="ls", cwd=None, credits=1)
            self.assertEqual(host.expect("stream/event")["params"]["event"], {"output": "ls in None"})
            self.assertEqual(host.read()["result"], {"code": 3})
            self.assertEqual(host.ask("environment/read", environment="boxed", path="a"), {"content": "the text of a"})
            self.assertIsNone(host.ask("environment/write", environment="boxed", path="a", content="b"))
            self.assertIsNone(host.ask("environment/close", environment="boxed"))
            self.assertEqual(host.ask("environment/read", environment="no", path="a")["data"]["kind"], "not_found")

    def test_a_lifespan_is_open_and_tools_change(self):
        with Host("keeper:Keeper", max_protocol=2) as host:
            self.assertEqual(host.hook("provide_lifespan"), {})
            for expected in ("open", "closed again"):
                host.start("tools/call", name="resource", arguments={})
                names = [tool["name"] for tool in host.expect("tools/changed")["params"]["tools"]]
                self.assertEqual(names, ["resource", "later"])
                self.assertEqual(host.read()["result"]["structuredContent"], {"state": expected})
                host.ask("lifespan/close")

    def test_a_command_has_raw_arguments_and_the_terminal_of_its_caller(self):
        with Host("keeper:Keeper", max_protocol=2) as host:
            call = host.start("cli/run", command="echo", argv=["-a", "b"], terminal={"stdin": True}, credits=10)
            printed = ""
            while (message := host.read()).get("method") != "ui/ask":
                printed += message["params"]["event"]["stdout"]
            self.assertEqual(message["params"], {"question": "", "raw": True, "call": call})
            host.send(id=message["id"], result={"answer": "Ada\n"})
            while (message := host.read()).get("id") != call:
                printed += message["params"]["event"]["stdout"]
            self.assertEqual((printed, message["result"]), ("name: ['-a', 'b'] Ada True\n", {"code": 0}))


class Schema(unittest.TestCase):
    def test_every_type_takes_what_can_only_mean_one_thing(self):
        def read(kind, value):
            try:
                return schema._read(kind, value)
            except ValueError as error:
                return str(error)

        integer, flag, many = {"type": "integer"}, {"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}
        for kind, value, expected in [
            (integer, 5.0, 5),
            (integer, " +5 ", 5),
            (integer, 5.5, "expected a whole number, got 5.5"),
            (integer, True, "expected a whole number, got true"),
            ({"type": "number"}, "1.5", 1.5),
            ({"type": "number"}, "inf", 'expected a number, got "inf"'),
            (flag, "Yes", True),
            (flag, 0, False),
            (flag, "maybe", 'expected true or false, got "maybe"'),
            ({"type": "string"}, True, "true"),
            ({"type": "string"}, [], "expected a string, got []"),
            ({"type": "object"}, '{"a": 1}', {"a": 1}),
            ({"type": "object"}, [1], "expected an object, got [1]"),
            (many, "[1, 2]", [1, 2]),
            (many, 3, [3]),
            (many, [1, "x"], 'item 1: expected a whole number, got "x"'),
            ({"anyOf": [integer, {"type": "null"}]}, None, None),
            ({"anyOf": [integer, {"type": "null"}]}, "x", 'expected a whole number, got "x"'),
            ({"type": "string", "enum": ["a", "b"]}, "c", 'expected one of a, b, got "c"'),
            ({}, {"any": 1}, {"any": 1}),
        ]:
            with self.subTest(kind=kind, value=value):
                got = read(kind, value)
                self.assertEqual((got, type(got)), (expected, type(expected)))


if __name__ == "__main__":
    unittest.main()
