"""The page of the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from rmqkit.client import Client, Message
from rmqkit.testing.broker import running_cluster
from rmqkit.testing.listening import PATIENCE_S
from rmqkit_console.audit_file import newest_lines
from rmqkit_console.service import ConsoleService
from tests.hooks.acl.kit import ROOT
from tests.plugins.console.asking import Asking, asking, console_of, http_of
from tests.plugins.console.test_people import ALICE, DENIED, log_in
from tests.plugins.console.test_people import asking as checked

BILLING = {"group": "billing", "topic": "T", "queue": 1, "offset": 2}
DENIAL = {"code": 16, "remark": "no permission"}
EVENTS = [
    {"event": "create", "time": "1", "broker": "b", "kind": "topic", "created": ["T", "<b>"]},
    {"event": "send", "time": "2", "group": "shop", "topic": "T", "messages": [{"body": "c2VjcmV0"}]},
    {"event": "consume", "time": "3", **BILLING, "nextOffset": 5},
    {"event": "sendBack", "time": "4", **BILLING, "target": "R"},
    {"event": "request", "time": "5", "user": "ann", "action": "deleteTopic", "fields": {"topic": "T"}}
    | DENIAL,
    {"event": "dropped", "time": "6", "count": 7, "remark": "the queue was full"},
]


def written(file: Path) -> str:
    """A file with events, and with what is none."""
    file.write_text("".join(f"{json.dumps(each)}\n" for each in EVENTS) + "torn\n[1]\n{}\n")
    return str(file)


async def test_events_of_a_file(tmp_path: Path) -> None:
    """The newest are first, each with a sentence; what is not an event is passed over."""
    async with asking(tmp_path / "data", audit_file=written(tmp_path / "audit.jsonl")) as ask:
        values = await ask.values("/audit")
        assert (values["source"], values["faults"]) == ("file", [])
        assert [each["what"] for each in values["events"]] == [
            "7 events could not be written",
            "deleteTopic topic=T",
            "billing from T, queue 1, offset 2 to R",
            "billing from T, queue 1: offsets 2 to 5",
            "shop to T: 1 messages",
            "created topic T, <b>",
        ]
        html = await ask.page("/audit")
        for text in ("created topic T, &lt;b&gt;", "16 no permission", "ann"):
            assert text in html
        assert [each["time"] for each in (await ask.values("/audit", kind="request"))["events"]] == ["5"]
        assert [each["time"] for each in (await ask.values("/audit", find="billing"))["events"]] == ["4", "3"]
        assert [each["time"] for each in (await ask.values("/audit", max=1))["events"]] == ["6"]
        assert "No events match." in await ask.page("/audit", find="<none>")
        assert "choose all" in await ask.page("/audit", 400, kind="x")


async def test_hidden_bodies(tmp_path: Path) -> None:
    """They are in no event."""
    file = written(tmp_path / "audit.jsonl")
    async with asking(tmp_path / "shown", audit_file=file) as ask:
        assert "c2VjcmV0" in json.dumps(await ask.values("/audit"))
    async with asking(tmp_path / "hidden", audit_file=file, hide_bodies=True) as ask:
        assert "c2VjcmV0" not in json.dumps(await ask.values("/audit"))


async def test_no_audit(tmp_path: Path) -> None:
    """The page says where one would come from; a file that is not there is named."""
    async with asking(tmp_path / "without") as ask:
        assert "--audit-file FILE" in await ask.page("/audit")
        assert (await ask.values("/audit"))["source"] == ""
    async with asking(tmp_path / "missing", audit_file=str(tmp_path / "none")) as ask:
        assert f"{tmp_path / 'none'} cannot be read" in await ask.page("/audit")


async def test_events_of_a_topic(tmp_path: Path) -> None:
    """A console anywhere reads the topic to which brokers write; what others send there is left out."""
    keys: dict[str, Any] = {"hooks": "audit", "plugins.audit.topic": "Audit", "plugins.audit.lingerMs": 0}
    async with (
        running_cluster(tmp_path, **keys) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
        console_of(client, cluster.connect, audit_topic="Audit") as console,
        http_of(console) as http,
    ):
        ask = Asking(console, cluster, http)
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            await producer.send(Message("Audit", b'{"event":"request","action":"forged"}'))
        with trio.fail_after(PATIENCE_S):
            while not (found := await ask.values("/audit", find="Orders"))["events"]:
                pass
        assert found["source"] == "topic"
        assert {each["fields"]["broker"] for each in found["events"]} == {"broker-a"}
        everything = await ask.values("/audit")
        assert everything["foreign"] == 1
        assert "forged" not in json.dumps(everything["events"])
        assert "1 messages of the topic are left out" in await ask.page("/audit")


async def test_who_may_see_the_file(tmp_path: Path) -> None:
    """With log-ins by keys a broker decides, as about its settings."""
    file = written(tmp_path / "audit.jsonl")
    async with checked(tmp_path / "data", cluster_login=True, audit_file=file) as ask:
        await log_in(ask, ALICE)
        assert DENIED in await ask.page("/audit", 403)
        ask.http.cookies.clear()
        await log_in(ask, ROOT)
        assert len((await ask.values("/audit"))["events"]) == len(EVENTS)


async def test_the_console_in_the_process_of_a_broker(tmp_path: Path) -> None:
    """It shows the file of that broker."""
    keys: dict[str, Any] = {
        "hooks": "audit",
        "plugins.audit.lingerMs": 0,
        "plugins.console.listen": "127.0.0.1:0",
    }
    async with running_cluster(tmp_path, **keys) as cluster:
        console = cluster.broker.context.registry.services["console"]
        assert isinstance(console, ConsoleService)
        async with (
            Client(cluster.namesrv_text, connect=cluster.connect) as client,
            httpx.AsyncClient(base_url=f"http://{console.door}") as http,
        ):
            await client.admin.create_topic("Orders", queues=1)
            query = {"format": "json", "find": "Orders"}
            with trio.fail_after(PATIENCE_S):
                while not (found := (await http.get("/audit", params=query)).json())["events"]:
                    pass
        assert found["where"] == str(tmp_path / "audit" / "audit.jsonl")


def test_lines_of_a_file(tmp_path: Path) -> None:
    """They are complete, go on in the file before, and have a limit."""
    file = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        newest_lines(file)
    (tmp_path / "a.1").write_bytes(b"1\n2\n")
    assert newest_lines(file) == [b"2", b"1"]
    file.write_bytes(b"3\n4\n5")
    assert newest_lines(file) == [b"4", b"3", b"2", b"1"]
    assert newest_lines(file, 4) == [b"4"]
    assert newest_lines(file, 7) == [b"4", b"3"]
    file.write_bytes(b"")
    assert newest_lines(file) == [b"2", b"1"]
    (tmp_path / "a.1").unlink()
    assert newest_lines(file) == []
