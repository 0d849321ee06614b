"""Scripted servers of chat platforms, for the channels of published Python plugins.

A plugin reaches them through an HTTPS proxy on loopback, which the package's own settings or HTTPS_PROXY name. All names
lead to this process, whose certificate is made for the test. The program runs with the packages that the plugins install.

Usage: server.py DIRECTORY. Writes `certificate.pem` and `address` into the directory, and each reply to stdout.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import ssl
import subprocess
import sys
import time
import zlib
from typing import Any

from aiohttp import WSMsgType, web

HOSTS = ["discord.com", "gateway.discord.gg", "open.feishu.cn"]
BOT = {"id": "1001", "username": "bub", "discriminator": "0", "avatar": None, "bot": True, "flags": 0}
AUTHOR = {"id": "2002", "username": "ada", "discriminator": "0", "avatar": None, "global_name": "Ada"}
CHAT = "3003"


#: The port of the scripted servers.
ports: list[int] = []


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def answer(value: Any) -> web.Response:
    # discord.py compares the type, so it must have no encoding.
    return web.Response(body=json.dumps(value).encode(), content_type="application/json")


# Discord


def discord_message(number: int, author: dict[str, Any], content: str) -> dict[str, Any]:
    date = "2026-01-02T03:04:05.000000+00:00"
    empty: dict[str, Any] = {"mentions": [], "mention_roles": [], "attachments": [], "embeds": []}
    flags = {"tts": False, "mention_everyone": False, "pinned": False, "type": 0, "edited_timestamp": None}
    return {"id": str(number), "channel_id": CHAT, "author": author, "content": content, "timestamp": date, **empty, **flags}


async def discord_user(request: web.Request) -> web.Response:
    return answer(BOT)


async def discord_application(request: web.Request) -> web.Response:
    about = {"description": "", "icon": None, "verify_key": "", "bot_public": False, "bot_require_code_grant": False}
    return answer({"id": "1001", "name": "bub", "flags": 0, "owner": AUTHOR, **about})


async def discord_channel(request: web.Request) -> web.Response:
    return answer({"id": CHAT, "type": 1, "recipients": [AUTHOR], "last_message_id": None})


async def discord_typing(request: web.Request) -> web.Response:
    report(platform="discord", typing=request.match_info["chat"])
    return web.Response(status=204)


async def discord_send(request: web.Request) -> web.Response:
    sent = await request.json()
    report(platform="discord", chat=request.match_info["chat"], content=sent["content"])
    return answer(discord_message(4005, BOT, sent["content"]))


async def discord_gateway(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    deflate = zlib.compressobj()

    async def send(operation: int, data: Any, event: str | None = None) -> None:
        message = json.dumps({"op": operation, "d": data, "s": 1 if event else None, "t": event}).encode()
        await socket.send_bytes(deflate.compress(message) + deflate.flush(zlib.Z_SYNC_FLUSH))

    await send(10, {"heartbeat_interval": 41250})
    async for message in socket:
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            break
        operation = json.loads(message.data)["op"]
        if operation == 1:
            await send(11, None)
        elif operation == 2:
            ready = {"v": 10, "user": BOT, "guilds": [], "session_id": "s", "resume_gateway_url": "wss://gateway.discord.gg"}
            await send(0, {**ready, "application": {"id": "1001", "flags": 0}}, "READY")
            await send(0, discord_message(4004, AUTHOR, "hello bub"), "MESSAGE_CREATE")
    return socket


# Feishu


async def feishu_endpoint(request: web.Request) -> web.Response:
    # The client does not use the proxy for the address that it gets here.
    address = f"wss://127.0.0.1:{ports[0]}/ws/v2?device_id=1&service_id=1"
    pings = {"ReconnectCount": -1, "ReconnectInterval": 120, "ReconnectNonce": 30, "PingInterval": 120}
    return answer({"code": 0, "msg": "", "data": {"URL": address, "ClientConfig": pings}})


async def feishu_socket(request: web.Request) -> web.WebSocketResponse:
    from lark_oapi.ws.pb.pbbp2_pb2 import Frame

    socket = web.WebSocketResponse()
    await socket.prepare(request)
    user = {"open_id": "ou_ada", "user_id": "ada", "union_id": "on_ada"}
    message = {
        "message_id": "om_1",
        "create_time": str(int(time.time() * 1000)),
        "chat_id": "oc_1",
        "chat_type": "p2p",
        "message_type": "text",
        "content": json.dumps({"text": ",tape.info"}),
    }
    event = {
        "schema": "2.0",
        "header": {"event_id": "e1", "event_type": "im.message.receive_v1", "create_time": "0", "token": "", "app_id": "cli_1"},
        "event": {"sender": {"sender_id": user, "sender_type": "user", "tenant_key": "t"}, "message": message},
    }
    frame = Frame()
    frame.SeqID, frame.LogID, frame.service, frame.method = 1, 1, 1, 1
    for key, value in {"type": "event", "message_id": "m1", "trace_id": "t1", "sum": "1", "seq": "0"}.items():
        header = frame.headers.add()
        header.key, header.value = key, value
    frame.payload = json.dumps(event).encode()
    await socket.send_bytes(frame.SerializeToString())
    async for received in socket:
        if received.type != WSMsgType.BINARY:
            break
    return socket


async def feishu_api(request: web.Request) -> web.Response:
    if request.path.endswith("/tenant_access_token/internal"):
        return answer({"code": 0, "msg": "ok", "tenant_access_token": "t-1", "expire": 7200})
    if request.method == "POST" and "/im/v1/messages" in request.path:
        sent = await request.json()
        content = json.loads(sent["content"])["text"]
        chat = sent.get("receive_id") or request.path.split("/")[-2]
        report(platform="feishu", chat=chat, content=content)
        return answer({"code": 0, "msg": "ok", "data": {"message_id": "om_2"}})
    return answer({"code": 99991663, "msg": "not scripted"})


# The proxy


def make_certificate(directory: pathlib.Path) -> ssl.SSLContext:
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    names = "subjectAltName=" + ",".join(["IP:127.0.0.1", *(f"DNS:{host}" for host in HOSTS)])
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=bub test"]
    command += ["-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Serve CONNECT: every scripted host leads to this process."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    target = head.split()[1]
    report(connect=target)
    if target.rsplit(":", 1)[0] not in HOSTS:
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        return writer.close()
    upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(pipe(reader, upstream_writer), pipe(upstream_reader, writer))


async def main(directory: pathlib.Path) -> None:
    app = web.Application()
    api = "/api/v10"
    app.add_routes(
        [
            web.get(f"{api}/users/@me", discord_user),
            web.get(f"{api}/oauth2/applications/@me", discord_application),
            web.get(f"{api}/channels/{{chat}}", discord_channel),
            web.post(f"{api}/channels/{{chat}}/typing", discord_typing),
            web.post(f"{api}/channels/{{chat}}/messages", discord_send),
            web.get("/", discord_gateway),
            web.post("/callback/ws/endpoint", feishu_endpoint),
            web.get("/ws/v2", feishu_socket),
            web.route("*", "/open-apis/{rest:.*}", feishu_api),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=make_certificate(directory))
    await site.start()
    ports.append(port := runner.addresses[0][1])
    proxy = await asyncio.start_server(lambda reader, writer: connect(reader, writer, port), "127.0.0.1", 0)
    address = directory / "address"
    address.with_suffix(".new").write_text(f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    address.with_suffix(".new").rename(address)
    await asyncio.Event().wait()


asyncio.run(main(pathlib.Path(sys.argv[1])))
