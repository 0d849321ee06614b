"""A plugin that misbehaves when a message contains "bad".

Arguments: the misbehavior, the file for process ids, and the hooks as JSON."""

import json
import os
import signal
import subprocess
import sys
import threading

HOW, NOTES, HOOKS = sys.argv[1], sys.argv[2], sys.argv[3]
out = sys.stdout.buffer


def note(pid):
    with open(NOTES, "a") as file:
        file.write(f"{pid}\n")


def write(data):
    out.write(data)
    out.flush()


def say(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def hang():
    threading.Event().wait()


def event(call):
    say(method="stream/event", params={"id": call, "event": {"kind": "text", "data": {"delta": "x"}}})


def misbehave(call):
    if HOW == "hang":
        hang()
    elif HOW == "note and hang":
        note(os.getpid())
        hang()
    elif HOW == "exit in a reply":
        write(b'{"jsonrpc": "2.0", "id": 1, "res')
        os._exit(3)
    elif HOW == "exit in a stream":
        event(call)
        os._exit(3)
    elif HOW == "hang in a stream":
        event(call)
        hang()
    elif HOW == "half a line":
        write(b'{"jsonrpc": "2.0", "id": ')
        hang()
    elif HOW == "a gigabyte":
        for _ in range(1024):
            write(b"x" * 1024 * 1024)
        hang()
    elif HOW == "garbage":
        for _ in range(1000):
            write(b"not a message\n")
        hang()
    elif HOW == "events":
        while True:
            event(call)
    elif HOW == "long events":
        for _ in range(32):
            say(method="stream/event", params={"id": call, "event": {"kind": "text", "data": {"delta": "x" * (2 << 20)}}})
        hang()
    elif HOW == "answers to nothing":
        while True:
            say(id=4711, result={"value": "x"})
    elif HOW == "another id":
        say(id=call + 1000, result={"value": "x"})
    elif HOW == "a text for an id":
        say(id=str(call), result={"value": "x"})
    elif HOW == "an answer twice":
        say(id=call, result={"value": "fine"})
        return True
    elif HOW == "requests":
        for number in range(1_000_000):
            say(id=number, method="tape/query", params={"text": "x" * 1000})
    elif HOW == "logs":
        for number in range(5_000):
            say(method="log", params={"message": f"line {number}"})
        return True
    elif HOW == "stderr":
        for _ in range(64):
            sys.stderr.buffer.write(b"x" * 1024 * 1024)
        for number in range(5_000):
            sys.stderr.write(f"line {number}\n")
        return True
    elif HOW == "deaf":
        # It neither reads its input nor ends.
        hang()
    elif HOW.startswith("ask "):
        # It sends a request to the host and answers with the error it gets.
        say(**{"id": 9000, **json.loads(HOW[4:].replace("ID", str(call)))})
        for line in iter(sys.stdin.buffer.readline, b""):
            message = json.loads(line)
            if message.get("id") == 9000:
                error = message.get("error", {}).get("data", {"kind": "fine", "message": ""})
                say(id=call, result={"value": error["kind"] + ": " + error["message"]})
                return False
            say(id=message["id"], result={})
    elif HOW == "no credits":
        # It requests the complete answer of the chain below.
        say(id=9000, method="next/call", params={"call": call, "args": {"prompt": "bad luck"}})
        for line in iter(sys.stdin.buffer.readline, b""):
            message = json.loads(line)
            if message.get("id") == 9000:
                say(id=call, result={"value": "whole: " + message["result"]["value"]})
                return False
            say(id=message["id"], result={})
    elif HOW == "unread":
        # It requests the stream of the chain below without credits.
        say(id=9000, method="next/call", params={"call": call, "credits": 0})
    elif HOW == "questions taken back":
        # It cancels each question that it asks about its call and counts those that are rejected.
        event(call)
        refused, last = 0, 12_000
        for number in range(10_000, last):
            say(id=number, method="tape/query", params={"call": call, "text": "x" * 100_000})
            say(method="$/cancelRequest", params={"id": number})
        say(id=last, method="ui/ask", params={"question": "is everything read?"})
        for line in iter(sys.stdin.buffer.readline, b""):
            message = json.loads(line)
            if message.get("id") == last:
                break
            refused += message.get("error", {}).get("message", "").startswith("too many concurrent requests: ")
        note(os.getpid())
        say(method="stream/event", params={"id": call, "event": {"kind": "text", "data": {"delta": f"{refused} refused"}}})
        say(id=call, result={})
    elif HOW == "children":
        for script in ("trap '' TERM HUP; sleep 1000 & wait; wait", "exec setsid sleep 1000"):
            note(subprocess.Popen(["sh", "-c", script], start_new_session=True).pid)
        os._exit(0)
    return False


note(os.getpid())
if HOW == "deaf to signals":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    HOW = "hang"
for line in sys.stdin.buffer:
    message = json.loads(line)
    call, method = message.get("id"), message.get("method", "")
    if method == "initialize":
        if HOW == "start":
            hang()
        say(id=call, result={"protocol": 1, "hooks": json.loads(HOOKS)})
    elif method == "ping":
        say(id=call, result={})
    elif call is not None and method:
        is_bad = b"bad" in line
        if HOW.startswith("raw "):
            # The raw line with the request's id for `ID`. Latin-1 maps every byte.
            write(HOW[4:].replace("ID", str(call)).encode("latin-1") + b"\n")
        elif HOW.startswith("{"):
            how = json.loads(HOW)
            if "event" in how:
                say(method="stream/event", params={"id": call, "event": how["event"]})
            say(id=call, result=how["answer"])
        elif not is_bad or misbehave(call):
            say(id=call, result={"value": "fine"} if method == "hook/build_prompt" else {})
