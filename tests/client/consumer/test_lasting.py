"""Errors that time does not cure come out of every consumer; others are tried again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from rmqkit.client import BlockingClient, BrokerError
from rmqkit.client.consumer.lasting import is_lasting, lasting_error
from rmqkit.errors import ClientError, ConfigError, ConnectionLost, MissingExtra, PluginError
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from tests.client.consumer.test_bad_records import FACES
from tests.client.consumer.test_requests import until
from tests.client.fake_cluster import cluster, serve_group
from tests.client.fakes import on_both_backends, run

REFUSALS = [
    (ResponseCode.NO_PERMISSION, "subscription group no permission, cg"),
    (ResponseCode.NO_PERMISSION, "consumer group cg may not consume (consumeEnable)"),
    (ResponseCode.NO_PERMISSION, "No permission for user x"),
    (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [cg] does not exist"),
    (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"),
]
#: Those of another moment, place or broker.
PASSING: list[Exception] = [
    *(
        BrokerError(ResponseCode.NO_PERMISSION, remark, "10.0.0.1:1")
        for remark in (
            "the broker[10.0.0.1] pulling message is forbidden",
            "the topic[group] pulling message is forbidden",
            "broker broker-a may not be read now",
            "topic group may not be read",
        )
    ),
    BrokerError(ResponseCode.SYSTEM_BUSY, "later", "10.0.0.1:1"),
    BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no heartbeat yet", "10.0.0.1:1"),
    BrokerError(ResponseCode.TOPIC_NOT_EXIST, "not yet", "10.0.0.1:1"),
    ConnectionLost("10.0.0.1:1"),
    ClientError("x"),
    OSError("x"),
]


def refusing(code: int, remark: str) -> Callable[[Command], Command]:
    return lambda command: answer(command, code, remark)


def test_which_errors_last() -> None:
    """Settings, files, packages, groups and conditions; not what another route, heartbeat or moment cures. A
    group of errors lasts if all of them do."""
    lasting: list[Exception] = [
        ConfigError("x"),
        MissingExtra("x", "tls"),
        PluginError("x"),
        *(BrokerError(code, remark, "10.0.0.1:1") for code, remark in REFUSALS),
    ]
    assert [each for each in lasting if not is_lasting(each)] == []
    assert [each for each in PASSING if is_lasting(each)] == []
    nested = ExceptionGroup("", [lasting[0], ExceptionGroup("", [lasting[1]])])
    assert lasting_error(nested) is lasting[0]
    assert lasting_error(ExceptionGroup("", [nested, PASSING[0]])) is None
    assert lasting_error(PASSING[0]) is None


@pytest.mark.parametrize(("code", "remark"), REFUSALS)
@pytest.mark.parametrize(
    ("kind", "face", "options"), FACES, ids=[f"{face.__name__}-{options}" for _, face, options in FACES]
)
@on_both_backends
def test_a_refusal_for_good_comes_out_of_every_face(
    backend: str, kind: str, face: Any, options: dict[str, Any], code: int, remark: str
) -> None:
    """What waits for messages raises it, once; leaving the consumer does not raise it again, and the client
    can be used further."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            broker.overrides[RequestCode.PULL_MESSAGE] = refusing(code, remark)
            broker.overrides[RequestCode.LITE_PULL_MESSAGE] = refusing(code, remark)
            async with getattr(client, kind)("cg", subscribe="T", start="first", **options) as consumer:
                with anyio.fail_after(60), pytest.raises(BrokerError) as caught:
                    await face(consumer, lambda message: None)
            assert (caught.value.code, caught.value.remark) == (code, remark)
            assert await client.admin.route("T") is not None

    run(backend, body)


@on_both_backends
def test_the_end_of_the_block_raises_what_nothing_has_raised(backend: str) -> None:
    """A program that does something else learns of it there; an error of the program itself is kept."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            broker.overrides[RequestCode.PULL_MESSAGE] = refusing(*REFUSALS[0])

            async def pulled() -> None:
                before = len(broker.server.seen(RequestCode.PULL_MESSAGE))
                await until(lambda: len(broker.server.seen(RequestCode.PULL_MESSAGE)) > before)
                await until(lambda: not consumer.queues or consumer._stopping.is_set())

            with pytest.raises(BrokerError, match="no permission"):
                async with client.push_consumer("cg", subscribe="T", start="first") as consumer:
                    await pulled()

            async def failing() -> None:
                nonlocal consumer
                async with client.push_consumer("cg", subscribe="T", start="first") as consumer:
                    await pulled()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await failing()

    run(backend, body)


@pytest.mark.parametrize("error", [each for each in PASSING if isinstance(each, BrokerError)], ids=str)
def test_a_refusal_for_the_moment_is_tried_again(error: BrokerError) -> None:
    """The consumer goes on when the broker does."""
    seen: list[bytes] = []

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            broker.put("T", 0, b"x")
            broker.overrides[RequestCode.PULL_MESSAGE] = refusing(error.code, error.remark)
            async with (
                client.push_consumer("cg", subscribe="T", start="first") as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(FACES[0][1], consumer, lambda message: seen.append(message.body))
                await until(lambda: len(broker.server.seen(RequestCode.PULL_MESSAGE)) > 2)
                del broker.overrides[RequestCode.PULL_MESSAGE]
                await until(lambda: seen == [b"x"])
                consumer.stop()

    run("trio", body)


def damaged(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))


def empty(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.touch()


def a_directory(file: Path) -> None:
    file.mkdir(parents=True)


def in_a_file(file: Path) -> None:
    file.parent.parent.parent.mkdir(parents=True)
    file.parent.parent.write_text("no directory")


@pytest.mark.parametrize("harm", [damaged, empty, a_directory, in_a_file])
@pytest.mark.parametrize(
    ("kind", "face", "options"), FACES, ids=[f"{face.__name__}-{options}" for _, face, options in FACES]
)
@on_both_backends
def test_a_file_of_offsets_that_cannot_be_used(
    backend: str, kind: str, face: Any, options: dict[str, Any], harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """A broadcast consumer that cannot read its offsets, or can never write them, says so and ends."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}, client_id="screen") as (fake, client):
            broker = serve_group(fake, client)
            broker.put("T", 0, b"x")
            folder = tmp_path / backend
            harm(folder / "screen" / "cg" / "offsets.json")
            keys = {"broadcast": True, "offsets_folder": folder, "start": "first", **options}
            async with getattr(client, kind)("cg", subscribe="T", **keys) as consumer:
                # Without a limit of time: the clock jumps while a thread reads the file.
                with pytest.raises(ConfigError, match=r"offsets\.json"):
                    await face(consumer, lambda message: None)

    run(backend, body)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """The error names the file and the option."""
    tmp_path.chmod(0o500)

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            serve_group(fake, client).put("T", 0, b"x")
            keys: dict[str, Any] = {"broadcast": True, "offsets_folder": tmp_path / "x", "start": "first"}
            async with client.push_consumer("cg", subscribe="T", **keys) as consumer:
                with pytest.raises(ConfigError, match=r"Permission denied.*offsets_folder"):
                    await FACES[0][1](consumer, lambda message: None)

    run("trio", body)


@pytest.mark.parametrize("order", ["none", "queue"])
@on_both_backends
def test_a_package_that_is_missing_later(backend: str, order: str) -> None:
    """A broker whose transport cannot be used is not a broker that does not answer."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            serve_group(fake, client)
            pool: Any = client._opened().pool
            call = pool.call

            async def broken(address: str, command: Command, timeout_ms: int) -> Command:
                if command.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE):
                    raise MissingExtra("QUIC needs the package aioquic", "quic")
                answered: Command = await call(address, command, timeout_ms)
                return answered

            pool.call = broken
            async with client.push_consumer("cg", subscribe="T", start="first", order=order) as consumer:
                with anyio.fail_after(60), pytest.raises(MissingExtra):
                    await FACES[0][1](consumer, lambda message: None)

    run(backend, body)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_consumers(rocketmq: ThreadedRocketMQ, tmp_path: Path, backend: str) -> None:
    """`run`, a loop, `poll` and the end of the block raise it."""
    topic = f"Lasting-{backend}"
    harm = {"broadcast": True, "offsets_folder": tmp_path}
    for group in ("run", "loop", "poll"):
        damaged(tmp_path / "screen" / group / "offsets.json")
    with BlockingClient(rocketmq.namesrv_text, backend=backend, client_id="screen") as client:
        client.admin.create_topic(topic, queues=1)
        with pytest.raises(ConfigError, match="no backup"):
            client.push_consumer("run", subscribe=topic, **harm).run(lambda message: None)  # type: ignore[arg-type]
        with (
            client.push_consumer("loop", subscribe=topic, **harm) as consumer,  # type: ignore[arg-type]
            pytest.raises(ConfigError, match="no backup"),
        ):
            next(iter(consumer))
        with (
            client.lite_pull_consumer("poll", subscribe=topic, **harm) as lite,  # type: ignore[call-overload]
            pytest.raises(ConfigError, match="no backup"),
        ):
            lite.poll(timeout_s=60)
