"""Assembly of a broker from settings and plugins, and the processor of each request (behaviour sheet, C1 and
C2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqkit.broker.processors.admin import AdminProcessor
from rmqkit.broker.processors.client_manage import ClientManageProcessor
from rmqkit.broker.processors.own_state import OwnStateProcessor
from rmqkit.broker.processors.pull import PullProcessor
from rmqkit.broker.processors.query import QueryProcessor
from rmqkit.broker.processors.queue_info import QueueInfoProcessor
from rmqkit.broker.processors.reply import ReplyProcessor
from rmqkit.broker.processors.send import SendProcessor
from rmqkit.broker.processors.send_back import SendBackProcessor
from rmqkit.broker.run import assemble
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.model.run import MessageRun
from rmqkit.plugin import loader
from rmqkit.plugin.flush import Level
from rmqkit.plugin.request import RequestProcessor
from rmqkit.plugin.store import MessageStore
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.testing.broker import test_config
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import message
from rmqkit_store_memory.store import MemoryStore
from rmqkit_store_mmap.store import MmapStore
from tests.broker.desk import open_desk

PROCESSORS: dict[type[RequestProcessor], tuple[RequestCode, ...]] = {
    SendProcessor: (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    SendBackProcessor: (RequestCode.CONSUMER_SEND_MSG_BACK,),
    ReplyProcessor: (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
    PullProcessor: (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    QueryProcessor: (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    ClientManageProcessor: (
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG,
    ),
    QueueInfoProcessor: (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
    ),
    AdminProcessor: (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_CONSUMER_CONNECTION_LIST),
    OwnStateProcessor: (
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.VIEW_BROKER_STATS_DATA,
    ),
}
CASES = [(code, processor) for processor, codes in PROCESSORS.items() for code in codes]


@pytest.mark.row("S013", "S015")
@pytest.mark.only_store(why="names the store itself")
@pytest.mark.parametrize(
    ("chosen", "kind"), [(None, MmapStore), ("mmap", MmapStore), ("memory", MemoryStore)]
)
def test_the_settings_choose_the_store(tmp_path: Path, chosen: str | None, kind: type) -> None:
    """The default is RocketMQ's format; any plugin's store can be selected."""
    config = test_config(tmp_path, store=chosen or Config().store)
    store, _ = assemble.make_store(config, loader.load(config), FakeClock())
    assert type(store) is kind


@pytest.mark.only_store(why="names the stores itself")
@pytest.mark.parametrize(("there", "other"), [("mmap", "lmdb"), ("lmdb", "mmap")])
async def test_a_directory_of_another_kind_of_store_is_refused(
    tmp_path: Path, there: str, other: str
) -> None:
    """The error contains a remedy, nothing is created, and the existing store is not affected."""

    def make(kind: str) -> MessageStore:
        config = test_config(tmp_path, store=kind)
        return assemble.make_store(config, loader.load(config), FakeClock())[0]

    for kind in (there, "memory", there):
        store = make(kind)
        await store.open()
        await store.close()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(
        ConfigError,
        match=(
            f"holds a store of kind {there}: set store = '{there}', or copy it with `rmqkit store copy .*"
            f" --to {other}`"
        ),
    ):
        make(other)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.row("S017", "S019", "S064", "S075", "S262", "S318")
@pytest.mark.parametrize(("code", "kind"), CASES, ids=[code.name for code, _ in CASES])
async def test_a_request_code_has_its_processor(
    tmp_path: Path, code: RequestCode, kind: type[RequestProcessor]
) -> None:
    """Each has one instance shared by both ports; pulls are missing on the fast one. An empty request is
    answered by a processor that knows the code."""
    async with open_desk(tmp_path) as desk:
        found = desk.router.processors[code]
        assert type(found) is kind
        assert desk.fast_router.processors.get(code) is (None if kind is PullProcessor else found)
        answer = await desk.outcome(request(code, opaque=7))
        assert answer is None or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.row("S024")
async def test_what_nobody_serves_is_refused(tmp_path: Path) -> None:
    """Unknown codes are refused, as by Java's default processor."""
    async with open_desk(tmp_path) as desk:
        assert 4711 not in desk.router.processors
        assert (await desk.ask(4711)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("code", [2004, 513, 200056, 354, 3001])
async def test_what_is_refused_is_named(tmp_path: Path, code: int) -> None:
    """An unsupported request of RocketMQ is refused by its name."""
    async with open_desk(tmp_path) as desk:
        refused = await desk.ask(code)
        assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert RequestCode(code).name in (refused.remark or "")


@pytest.mark.row("S027")
async def test_the_store_is_built_with_its_listeners(tmp_path: Path) -> None:
    """Settings determine its limits, a message wakes held pulls, and sends are counted."""
    async with open_desk(tmp_path, maxMessageSize=1_000) as desk:
        assert await desk.outcome(desk.pull_request(sys_flag=6, suspend_timeout_millis=15_000)) is None
        assert len(desk.broker.held) == 1
        assert (await desk.send(body=b"x" * 1_001)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (len(desk.broker.held), desk.broker.stats.put_messages) == (1, 0)
        await desk.sent(body=b"x" * 1_000)
        assert (len(desk.broker.held), desk.broker.stats.put_messages) == (0, 1)
        (answer,) = desk.peer.answers
        assert answer.code == ResponseCode.SUCCESS
        desk.broker.appender.append(MessageRun([message("T", 0, b"from inside")]))
        await desk.broker.store.settled(desk.broker.store.end_offset, Level.WRITTEN)
        assert [stored.body[-6:] for stored in desk.stored()] == [b"xxxxxx", b"inside"]
