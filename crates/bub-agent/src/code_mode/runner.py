# Runs code for bub and calls tools for it. Messages are JSON objects, one per line, on stdin and stdout.
import ast
import asyncio
import builtins
import inspect
import io
import json
import linecache
import os
import sys
import threading
import traceback

FLUSH_CHARS = 8192
FLUSH_SECONDS = 0.2


class BubError(Exception):
    """A tool call that failed."""


class Host:
    """The connection to bub."""

    def __init__(self):
        self._lock = threading.Lock()
        self._output = os.dup(1)
        self._input = os.fdopen(os.dup(0), "rb")
        self._calls = {}
        self._next_id = 0

    def read(self):
        line = self._input.readline()
        return json.loads(line) if line else None

    def send(self, message):
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._output, data):]

    async def call(self, name, arguments):
        call_id, self._next_id = self._next_id, self._next_id + 1
        message = {"type": "call", "id": call_id, "name": name, "arguments": arguments}
        json.dumps(message)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        self.send(message)
        return await future

    def listen(self, loop):
        while True:
            message = self.read()
            if message is None:
                os._exit(1)
            loop.call_soon_threadsafe(self._answer, message)

    def _answer(self, message):
        future = self._calls.pop(message.get("id"), None)
        if future is None or future.done():
            return
        if message["type"] == "result":
            future.set_result(message["value"])
        else:
            future.set_exception(BubError(message["message"]))


class Output(io.TextIOBase):
    """What the code prints."""

    def __init__(self, host):
        self._host, self._lock = host, threading.RLock()
        self._parts, self._size = [], 0

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._parts.append(text)
            self._size += len(text)
            if self._size >= FLUSH_CHARS:
                self.flush()
        return len(text)

    def flush(self):
        with self._lock:
            data, self._parts, self._size = "".join(self._parts), [], 0
            if data:
                clean = data.encode("utf-8", "replace").decode("utf-8")
                self._host.send({"type": "output", "data": clean})

    def flush_often(self):
        pause = threading.Event()
        while not pause.wait(FLUSH_SECONDS):
            self.flush()


class Tools:
    """The tools, as async functions."""

    def __init__(self, host, output, names):
        for name in names:
            setattr(self, name, self._function(host, output, name))

    @staticmethod
    def _function(host, output, name):
        async def call(*args, **arguments):
            if args:
                raise TypeError(f"{name}() takes keyword arguments only")
            output.flush()
            return await host.call(name, arguments)

        call.__name__ = call.__qualname__ = name
        return call

    def __getattr__(self, name):
        raise AttributeError(f"unknown tool '{name}'")


async def run(host, output, request):
    code, filename = request["code"], request["filename"]
    threading.Thread(target=host.listen, args=(asyncio.get_running_loop(),), daemon=True).start()
    threading.Thread(target=output.flush_often, daemon=True).start()
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
    scope = {"__name__": "__run_code__", "__builtins__": builtins, "BubError": BubError}
    scope["tools"] = Tools(host, output, request["tools"])
    compiled = compile(code, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, scope)
    if inspect.iscoroutine(result):
        await result


def failure(error, filename):
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if frame.filename == filename]
    lines = ["Traceback (most recent call last):\n"] + traceback.format_list(frames) if frames else []
    lines += traceback.format_exception_only(type(error), error)
    text = f"{type(error).__name__}: {error}"
    clean = [part.encode("utf-8", "replace").decode("utf-8") for part in (text, "".join(lines))]
    return {"type": "failed", "error": clean[0], "traceback": clean[1]}


def main():
    host = Host()
    request = host.read()
    sys.stdout = output = Output(host)
    try:
        asyncio.run(run(host, output, request))
        end = {"type": "done"}
    except BaseException as error:
        end = failure(error, request["filename"])
    output.flush()
    host.send(end)
    os._exit(0)


main()
