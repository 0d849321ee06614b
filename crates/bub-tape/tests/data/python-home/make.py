#!/usr/bin/env python3
"""Writes tapes/ and answers.json: a home as the Python version writes it, with texts made for these tests.

The lines have the format of the Python version: `json.dumps` with its defaults and `ensure_ascii=False`. Each session is a
structural case. `answers.json` has the results that the Python version gives for each session; they are computed here,
not by bub. Run this script again after a change, and commit the result.
"""

import hashlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

HOME = Path(__file__).parent
WORKSPACE = "/srv/garden"
CONTEXT = "sender_id=human|channel=$cli|chat_id=local"
SYSTEM = "You tend a garden. Answer in one sentence."


def tape_name(session):
    def digest(text):
        return hashlib.md5(text.encode()).hexdigest()[:16]

    return f"{digest(WORKSPACE)}__{digest(session)}"


class Writer:
    """One tape file. The clock advances with each entry, so that the script always writes the same bytes."""

    def __init__(self, start):
        self.entries = []
        self.now = datetime(2026, 3, 1, 8, start, 0, 125, tzinfo=timezone.utc)
        self.tokens = 100
        self.calls = 0

    def add(self, kind, payload, **meta):
        self.now += timedelta(seconds=1, microseconds=4321)
        entry = {"id": len(self.entries) + 1, "kind": kind, "payload": payload, "meta": meta, "date": self.now.isoformat()}
        self.entries.append(entry)

    def event(self, name, data, **meta):
        self.add("event", {"name": name, "data": data}, **meta)

    def anchor(self, name, state=None):
        payload = {"name": name} if state is None else {"name": name, "state": state}
        self.add("anchor", payload)

    def handoff(self, name, state):
        self.anchor(name, state)
        self.event("handoff", {"name": name, "state": state})

    def start(self, **state):
        self.handoff("session/start", {"owner": "human", **state})

    def command(self, raw, output, status="ok"):
        data = {"raw": raw, "name": raw.split()[0], "status": status, "elapsed_ms": 2, "output": output}
        self.event("command", {**data, "date": self.now.isoformat()})

    def prompt(self, text):
        return f"{CONTEXT}\n---Date: {self.now.isoformat(timespec='seconds')}---\n{text}"

    def turn(self, text, *steps, model="openai:small"):
        """Each step is an answer (text), tool calls with results (list of triples), or an error (exception)."""
        prompt = self.prompt(text)
        self.event("loop.start", {"model": model, "prompt": prompt, "allowed_skills": None, "allowed_tools": None})
        for number, step in enumerate(steps, 1):
            if number > 1 and not isinstance(steps[number - 2], Exception):
                prompt = f"Go on. [context: {CONTEXT}]"
            self.step(number, prompt, step, model)

    def step(self, number, prompt, step, model):
        self.event("loop.step.start", {"step": number, "prompt": prompt})
        done = {"step": number, "elapsed_ms": 40 + number}
        if isinstance(step, OverflowError):
            state = {"reason": "context_length_exceeded", "error": str(step)}
            self.handoff("auto_handoff/context_overflow", state)
            done |= {"status": "auto_handoff", "error": str(step)}
        elif isinstance(step, Exception):
            done |= {"status": "error", "error": str(step)}
        else:
            run = {"run_id": f"run-{self.now:%Y%m%dT%H%M%S%f}Z"}
            spilled = [result for _, _, result in step if isinstance(result, Spill)] if isinstance(step, list) else []
            for result in spilled:
                self.event("spill.write", result.summary(), **run, context=False)
            self.add("system", {"content": SYSTEM}, **run)
            self.add("message", {"role": "user", "content": prompt}, **run)
            if isinstance(step, str):
                self.add("message", {"role": "assistant", "content": step}, **run)
            else:
                self.tool_step(step, run)
            self.tokens += 17
            usage = {"completion_tokens": 7, "prompt_tokens": self.tokens - 7, "total_tokens": self.tokens}
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
            self.event("run", {"status": "ok", "usage": usage, "model": model}, **run)
            done["status"] = "ok" if isinstance(step, str) else "continue"
        self.event("loop.step", {**done, "date": self.now.isoformat()})

    def tool_step(self, step, run):
        calls = []
        for name, arguments, _ in step:
            function = {"arguments": json.dumps(arguments, ensure_ascii=False), "name": name}
            calls.append({"id": f"call_{self.calls}", "function": function, "type": "function"})
            self.calls += 1
        self.add("tool_call", {"calls": calls}, **run)
        results = [result.notice() if isinstance(result, Spill) else result for _, _, result in step]
        self.add("tool_result", {"results": results}, **run)

    def text(self):
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in self.entries)


class Spill:
    """A tool output in the sidecar tape `spill`."""

    CHUNK = 400

    def __init__(self, tool, output):
        self.tool = tool
        self.output = output
        self.handle = hashlib.md5(output.encode()).hexdigest()
        self.chunks = [output[start : start + self.CHUNK] for start in range(0, len(output), self.CHUNK)]

    def summary(self):
        size = len(self.output.encode())
        return {"status": "ok", "handle": self.handle, "bytes": size, "chunks": len(self.chunks), "tool": self.tool}

    def notice(self):
        return f"[{len(self.chunks)} chunks; handle: {self.handle}]\n{self.chunks[0][:60]}"

    def write(self, writer):
        for number, chunk in enumerate(self.chunks):
            writer.anchor(f"spill/{self.handle}/chunk/{number}")
            writer.add("tool_result", {"results": [chunk]}, spill_handle=self.handle, spill_chunk=number)
        writer.anchor(f"spill/{self.handle}/manifest")
        size = {"chunks": len(self.chunks), "bytes": len(self.output.encode()), "chars": len(self.output)}
        data = {"handle": self.handle, **size, "lines": self.output.count("\n"), "tool": self.tool}
        writer.event("spill.manifest", data, spill_handle=self.handle)


def messages(entries):
    """The messages of a view, as the Python version builds them: without events and system texts."""
    found = []
    calls = []
    for entry in entries:
        payload = entry["payload"]
        if entry["kind"] == "message":
            found.append(payload)
        elif entry["kind"] == "tool_call":
            calls = payload["calls"]
            found.append({"role": "assistant", "content": "", "tool_calls": calls})
        elif entry["kind"] == "tool_result":
            for call, result in zip(calls, payload["results"]):
                content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
                message = {"role": "tool", "content": content, "tool_call_id": call["id"]}
                found.append({**message, "name": call["function"]["name"]})
    return found


def answer(session, entries):
    anchors = [entry for entry in entries if entry["kind"] == "anchor"]
    after = entries[anchors[-1]["id"] :]
    usage = [entry["payload"]["data"]["usage"]["total_tokens"] for entry in entries if entry["payload"].get("name") == "run"]
    return {
        "tape": tape_name(session),
        "entries": len(entries),
        "anchors": len(anchors),
        "last_anchor": anchors[-1]["payload"]["name"],
        "entries_since_last_anchor": len(after),
        "last_token_usage": usage[-1] if usage else None,
        "anchor_list": [anchor["payload"] for anchor in anchors],
        "messages_after_last_anchor": messages(after),
    }


def sessions():
    plain = Writer(0)
    plain.start()
    plain.turn("Is the gate open?", "Yes, since sunrise.")
    plain.turn("番茄熟了吗？ 🍅", "番茄还没有熟。 🍅")
    plain.turn('A "quoted" \\ line,\ta tab and \u0001 \u007f \u2028.', "leaf " * 60)

    tools = Writer(1)
    tools.start()
    steps = [[("bash", {"cmd": "true"}, "(no output)")] for _ in range(3)]
    tools.turn("Water the beds, one by one.", *steps, "Three beds are wet.")
    tools.turn("Read the label.", [("fs.read", {"path": "label.txt"}, "basil 罗勒")], "It is basil.")
    pair = [("bash", {"cmd": f"echo {name}"}, name) for name in ("left", "middle", "right")]
    tools.turn("Check all sides at once.", pair, "All sides are fine.")
    tools.turn("Use the shears.", [("shears", {"x": 1}, "unknown tool: shears")], "There are no shears.")
    mixed = [("count", {"deep": [1.5, 1e20, -0.25, True, None]}, {"beds": 3, "area": 12.75}), ("bash", {}, "")]
    tools.turn("Count.", mixed, "Three beds.")

    handoff = Writer(2)
    handoff.start()
    handoff.turn("Dig.", "Dug.")
    handoff.handoff("phase-1", {"summary": "the ground is ready"})
    handoff.command("tape.handoff name=phase-1", "added phase-1")
    handoff.turn("Sow.", "Sown.")
    handoff.handoff("phase-2", {"summary": "播种", "next_steps": ["water", "wait"]})
    handoff.command("tape.handoff name=phase-2", "added phase-2")
    handoff.turn("Water.", "Watered.")

    overflow = Writer(3)
    overflow.start()
    overflow.turn("Before.", "Noted.")
    overflow.turn("List every leaf.", OverflowError("400: 9000 tokens, the limit is 8192"), "There are many leaves.")

    failing = Writer(4)
    failing.start()
    failing.turn("Hello?", RuntimeError("500: the server has a problem"))
    failing.turn("Call it.", RuntimeError("the arguments are not an object"))
    failing.turn("Again.", "It works now.")
    failing.command("nosuchcommand", "exit code 127", status="error")

    output = Spill("bash", "".join(f"leaf {number}\n" for number in range(200)))
    spill = Writer(5)
    spill.start()
    spill.turn("Number the leaves.", [("bash", {"cmd": "leaves"}, output)], "There are 200.")
    sidecar = Writer(6)
    output.write(sidecar)

    model = Writer(7)
    model.start()
    model.event("model_switch", {"model": "openai:large"})
    model.command("model openai:large", "the model is openai:large")
    model.event("reasoning_effort_switch", {"reasoning_effort": "high"})
    model.command("reasoning_effort high", "the effort is high")
    model.turn("Think.", "I thought.", model="openai:large")

    archive = Writer(8)
    archive.start()
    archive.turn("Old.", "Old answer.")
    reset = Writer(9)
    backup = f"/srv/home/tapes/{tape_name('reset')}.jsonl.20260301T080900Z.bak"
    reset.start(archived=backup)
    reset.event("sidecar.archive", {"sidecar": "spill", "status": "ok", "reason": "tape.reset"}, context=False)
    reset.event("sidecar.reset", {"sidecar": "spill", "status": "ok", "reason": "tape.reset"}, context=False)
    reset.command("tape.reset archive=true", f"archived as {backup}")
    reset.turn("New.", "New answer.")

    commands = Writer(10)
    commands.start()
    commands.command("help", "the commands are: help, tape.info")
    commands.command("tape.info", "entries: 3")

    conversations = {
        "plain": plain, "tools": tools, "handoff": handoff, "overflow": overflow, "failing": failing, "spill": spill,
        "model": model, "reset": reset, "commands": commands,
    }
    others = {
        f"{tape_name('spill')}__sidecar__spill.jsonl": sidecar,
        f"{tape_name('reset')}.jsonl.20260301T080900Z.bak": archive,
    }
    return conversations, others


def main():
    conversations, others = sessions()
    tapes = HOME / "tapes"
    tapes.mkdir(exist_ok=True)
    for old in tapes.iterdir():
        old.unlink()
    for session, writer in conversations.items():
        (tapes / f"{tape_name(session)}.jsonl").write_text(writer.text())
    for name, writer in others.items():
        (tapes / name).write_text(writer.text())
    answers = {session: answer(session, writer.entries) for session, writer in conversations.items()}
    text = json.dumps({"workspace": WORKSPACE, "sessions": answers}, ensure_ascii=False, indent=1)
    (HOME / "answers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
