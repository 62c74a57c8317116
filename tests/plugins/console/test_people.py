"""People who log in with the keys of users of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import define

from rmqkit.client import Client, Message, NameServersUnreachable, copying
from rmqkit.model import properties as props
from rmqkit.model.names import dlq_topic
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.testing.listening import PATIENCE_S
from rmqkit_console import people as module
from rmqkit_console.people import IDLE_MS, MAX_PEOPLE, NobodyChecks, People, WrongKeys
from rmqkit_console.samples import Lag, Rates, Sample
from rmqkit_console.sessions import LIFETIME_MS, MAX_FAILURES, Session
from tests.hooks.acl.kit import ROOT, checked_cluster, client_of
from tests.plugins.console.asking import NOW_MS, TOKEN, Asking, console_of, http_of

ALICE = ("alice", "alice-secret")
DENIED = "no permission to access"


@define
class Clock:
    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def people_of(cluster: Cluster, clock: Clock) -> People:
    return People(lambda name, secret: client_of(cluster, (name, secret)), clock)


@asynccontextmanager
async def asking(directory: Path, **settings: Any) -> AsyncIterator[Asking]:
    """A console before a cluster that checks everything; alice may see the topic Orders alone."""
    async with checked_cluster(directory) as cluster:
        async with client_of(cluster) as root:
            await root.admin.create_topic("Orders", queues=1)
            await root.admin.create_topic("Payments", queues=1)
            await root.access.set_user(ALICE[0], password=ALICE[1])
            await root.access.set_policy(ALICE[0], ["Topic:Orders"], ["Get", "Sub"])
        async with (
            Client(cluster.namesrv_text, connect=cluster.connect) as client,
            console_of(client, cluster.connect, **settings) as console,
            http_of(console) as http,
        ):
            yield Asking(console, cluster, http)


async def log_in(ask: Asking, keys: tuple[str, str], wanted: str = "") -> httpx.Response:
    form = {"user": keys[0], "password": keys[1], "token": await ask.token("/login"), "next": wanted}
    return await ask.http.post("/login", data=form)


async def test_keys_that_are_right(tmp_path: Path) -> None:
    """They are taken, of whatever user, and lead to the page that was asked for; the cookie has no secret."""
    async with asking(tmp_path, cluster_login=True) as ask:
        asked = await ask.http.get("/topics")
        assert asked.headers["location"] == "/login?next=%2Ftopics"
        form = await ask.page("/login")
        assert "Secret key" in form
        done = await log_in(ask, ROOT, "/topics")
        assert (done.status_code, done.headers["location"]) == (303, "/topics")
        html = await ask.page("/topics")
        assert "Log out root" in html
        assert "Payments" in html
        assert all(
            ROOT[1] not in str(each) for each in (done.headers, html, ask.console.people, ask.http.cookies)
        )


async def test_pages_are_those_of_the_user(tmp_path: Path) -> None:
    """What policies allow is shown, what they refuse is answered with 403 and with what is missing."""
    async with asking(tmp_path, cluster_login=True) as ask:
        await log_in(ask, ALICE)
        refused = await ask.page("/", 403)
        assert f"User:alice has {DENIED} Cluster:DefaultCluster" in refused.replace("&#39;", "'")
        assert "rmqkit acl policy list alice" in refused
        assert (await ask.values("/messages", topic="Orders"))["messages"] == []
        assert DENIED in (await ask.values("/messages", 403, topic="Payments"))["error"]


async def test_what_a_user_needs_for_every_page(tmp_path: Path) -> None:
    """Get and List for the cluster, Get for topics and groups, Sub for what is read."""
    audit = tmp_path / "audit.jsonl"
    audit.write_text("")
    async with asking(tmp_path / "data", cluster_login=True, audit_file=str(audit)) as ask:
        dead = dlq_topic("billing")
        async with client_of(ask.cluster) as root:
            await root.admin.create_topic(dead, queues=1)
            async with root.producer("shop") as producer, root.pull_consumer("billing") as consumer:
                sent = await producer.send(Message("Orders", b"x", keys=["k"]))
                await consumer.commit(sent.queue, 0)
                await producer.send(Message(dead, b"x"))
                await producer.send(Message("Payments", b"x"))
            await root.access.set_user("viewer", password="viewer-secret")
            for resource, actions in (
                ("Cluster:*", ["Get", "List"]),
                ("Topic:*", ["Get"]),
                ("Group:*", ["Get"]),
                ("Topic:Orders", ["Get", "Sub"]),
                (f"Topic:{dead}", ["Get", "Sub"]),
                (f"Group:{copying.READER_GROUP}", ["Get", "Sub"]),
            ):
                await root.access.set_policy("viewer", [resource], actions)
        await log_in(ask, ("viewer", "viewer-secret"))
        address = (await ask.values("/"))["brokers"][0]["address"]
        for path in ("/topics", "/groups", "/dead-letters", "/resends", "/backlogs", "/settings", "/audit"):
            assert (await ask.values(path)).get("faults", []) == [], path
        await ask.page("/broker", address=address)
        await ask.page("/topic", topic="Orders")
        await ask.page("/group", group="billing")
        await ask.page("/message", topic="Orders", id=sent.message_id)
        await ask.page("/message", topic="Orders", id=sent.offset_message_id)
        queries: list[dict[str, Any]] = [{}, {"key": "k"}, {"since": "1h"}, {"id": sent.message_id}]
        for query in queries:
            assert len((await ask.values("/messages", topic="Orders", **query))["messages"]) == 1
        assert (await ask.values("/dead-letters", group="billing"))["messages"] == 1
        assert DENIED in await ask.page("/messages", 403, topic="Payments")


async def test_somebody_who_has_not_logged_in(tmp_path: Path) -> None:
    """A console without keys and without a login of its own leads to the form when the cluster refuses."""
    async with asking(tmp_path) as ask:
        asked = await ask.http.get("/topics")
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Ftopics")
        assert await ask.values("/topics", 401) == {"error": "log in first"}
        assert (await log_in(ask, ROOT)).status_code == 303
        assert [each["topic"] for each in (await ask.values("/topics"))["topics"]] == ["Orders", "Payments"]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((ROOT[0], "wrong"), "access key or secret key is wrong"),
        (("nobody", "x"), "access key or secret key is wrong"),
        ((ROOT[0], ""), "is missing"),
        (("", ""), "is missing"),
    ],
)
async def test_keys_that_are_wrong(tmp_path: Path, keys: tuple[str, str], text: str) -> None:
    """The form says so, and nobody is logged in."""
    async with asking(tmp_path, cluster_login=True) as ask:
        answer = await log_in(ask, keys)
        assert (answer.status_code, text in answer.text) == (403, True)
        assert (await ask.http.get("/")).status_code == 303
        assert ask.console.people.clients == ()


async def test_keys_are_not_tried_at_will(tmp_path: Path) -> None:
    """After ten failures even the right ones are refused for a while."""
    async with asking(tmp_path, cluster_login=True) as ask:
        for _ in range(MAX_FAILURES):
            assert (await log_in(ask, (ROOT[0], "guess"))).status_code == 403
        assert (await log_in(ask, ROOT)).status_code == 429


async def test_a_log_in_to_servers_that_check_nobody(tmp_path: Path) -> None:
    """They would take every secret, so nobody is let in."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
        console_of(client, cluster.connect, cluster_login=True) as console,
        http_of(console) as http,
    ):
        answer = await log_in(Asking(console, cluster, http), ROOT)
        assert (answer.status_code, "take any secret key" in answer.text) == (403, True)
        assert console.people.clients == ()
        with pytest.raises(NobodyChecks):
            await people_of(cluster, Clock()).proven(*ROOT)


async def test_no_server_answers() -> None:
    """The log-in ends with that error, and is not counted as a wrong one."""
    people = People(lambda name, secret: Client("127.0.0.1:1", access_key=name, secret_key=secret), Clock())
    with pytest.raises(NameServersUnreachable):
        await people.proven(*ROOT)


async def test_after_the_logout(tmp_path: Path) -> None:
    """The client with the keys is closed, and the cookie is worth nothing."""
    async with asking(tmp_path, cluster_login=True) as ask:
        await log_in(ask, ROOT)
        client = ask.console.people.clients[0]
        cookies = dict(ask.http.cookies)
        token = TOKEN.search(await ask.page("/topics"))
        assert token is not None
        await ask.http.post("/logout", data={"token": token[1]})
        assert not ask.console.people.clients
        with pytest.raises(Exception, match="is not open"):
            await client.admin.topics()
        ask.http.cookies.clear()
        ask.http.cookies.update(cookies)
        assert (await ask.http.get("/topics")).headers["location"] == "/login?next=%2Ftopics"


async def test_a_logout_ends_what_was_being_sent_again(tmp_path: Path) -> None:
    """The run says why, and the console goes on."""
    async with asking(tmp_path, cluster_login=True, allow_writes=True) as ask:
        dead = dlq_topic("billing")
        async with client_of(ask.cluster) as root:
            await root.admin.create_topic(dead, queues=1)
            async with root.producer("shop") as producer:
                for _ in range(3):
                    await producer.send(Message(dead, b"x", properties={props.DLQ_ORIGIN_TOPIC: "Orders"}))
        await log_in(ask, ROOT)
        token = await ask.token("/dead-letters", group="billing")
        form = {"token": token, "group": "billing", "which": "all", "rate": "1"}
        assert (await ask.http.post("/dead-letters/resend", data=form)).status_code == 303
        with trio.fail_after(PATIENCE_S):
            while not (await ask.values("/resends"))["resends"][0]["sent"]:
                pass
            await ask.http.post("/logout", data={"token": token})
            await log_in(ask, ROOT)
            while (await ask.values("/resends"))["isRunning"]:
                pass
        (run,) = (await ask.values("/resends"))["resends"]
        assert (run["user"], run["failed"] > 0) == ("root", True)
        assert "closed" in run["faults"][0]


async def test_a_session_that_was_ended_elsewhere(tmp_path: Path) -> None:
    """Its browser is led to the form, though its cookie is still good."""
    async with asking(tmp_path, cluster_login=True) as ask:
        await log_in(ask, ROOT)
        for person in list(ask.console.people._known.values()):
            await ask.console.people.end(person.session)
        assert (await ask.http.get("/topics")).headers["location"] == "/login?next=%2Ftopics"


async def test_sessions_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their time, when nobody asks for long, and when there are too many: then the one that was used least
    recently."""
    monkeypatch.setattr(module, "MAX_PEOPLE", 2)
    assert MAX_PEOPLE > 2
    async with checked_cluster(tmp_path) as cluster:
        clock = Clock()
        people = people_of(cluster, clock)
        sessions = [Session(name, "root", NOW_MS + LIFETIME_MS) for name in ("a", "b", "c")]
        for session in sessions[:2]:
            await people.begin(session, await people.proven(*ROOT))
            clock.now_ms += 1
        assert people.client_of(sessions[0]) is not None
        clock.now_ms += 1
        await people.begin(sessions[2], await people.proven(*ROOT))
        assert [people.client_of(each) is not None for each in sessions] == [True, False, True]
        clock.now_ms += IDLE_MS - 1
        assert people.client_of(sessions[2]) is not None
        clock.now_ms += 1
        assert people.client_of(sessions[0]) is None
        await people.end_old()
        assert len(people.clients) == 1
        clock.now_ms = NOW_MS + LIFETIME_MS
        assert people.client_of(sessions[2]) is None
        await people.end_old()
        assert not people.clients


async def test_samples_are_taken_with_the_keys_of_somebody_who_may(tmp_path: Path) -> None:
    """Until then there are none; of each broker and group they are shown to those who may see it."""
    async with asking(tmp_path, cluster_login=True) as ask:
        await ask.console.samples.take()
        await log_in(ask, ALICE)
        await ask.console.samples.take()
        assert [each.rates for each in ask.console.samples.kept] == [{}, {}]
        ask.http.cookies.clear()
        await log_in(ask, ROOT)
        await ask.console.samples.take()
        assert list(ask.console.samples.kept[-1].rates) == ["broker-a"]
        others = Sample(NOW_MS, {"other": Rates(1, 1)}, {"other 10.0.0.2:5": 1}, {"billing": Lag(1, 1)})
        ask.console.samples.keep(others)
        titles = [plot["title"] for plot in (await ask.values("/"))["plots"]]
        assert "Messages not consumed" in titles
        async with client_of(ask.cluster) as root:
            await root.access.set_policy(ALICE[0], ["Cluster:*"], ["Get", "List"])
        ask.http.cookies.clear()
        await log_in(ask, ALICE)
        names = {line["name"] for plot in (await ask.values("/"))["plots"] for line in plot["lines"]}
        assert names == {"broker-a"}


async def test_wrong_keys_open_nothing(tmp_path: Path) -> None:
    """The client is closed again."""
    opened: list[Client] = []
    async with checked_cluster(tmp_path) as cluster:

        def open_as(name: str, secret: str) -> Client:
            opened.append(client_of(cluster, (name, secret)))
            return opened[-1]

        with pytest.raises(WrongKeys):
            await People(open_as, Clock()).proven(ROOT[0], "wrong")
        with pytest.raises(Exception, match="is not open"):
            await opened[0].admin.topics()
