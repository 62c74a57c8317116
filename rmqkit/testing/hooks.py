"""Contracts of hooks as tests. Subclass the contract of your hook's kind and define how the hook is made;
pytest then runs the tests in a real broker.

    class TestMine(SendMessageHookContract):
        def make_hook(self) -> SendMessageHook:
            return MyHook()

The contracts test what every hook has to accept and must not do: it sees all kinds of requests, valid and
invalid, and a broker with the hook answers like one without it. A hook that refuses requests on purpose
declares it by `may_refuse`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from attrs import define

from rmqkit import hookimpl
from rmqkit.broker.processors.send import SendProcessor
from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.hooks import ConsumeMessageHook, PutMessageHook, SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.later import Due, LaterDelivery, Level, Time
from rmqkit.plugin.request import Answers, Reply, whole
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol import batch, record
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from rmqkit.protocol.tags import tags_code
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message

Answered = tuple[int, str | None]
#: The time when messages are marked for a later one.
_NOW_MS = 1_700_000_000_000


@define
class _Plugin:
    """Registers one hook under its kind, to run before all others."""

    kind: str
    hook: Any

    def _register(self, kind: str, register: Register[Any]) -> None:
        if kind == self.kind:
            register("under-test", self.hook, order=-1_000_000)

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        self._register("send_message_hooks", register)

    @hookimpl
    def rmqkit_register_consume_message_hooks(
        self, register: Register[ConsumeMessageHook], config: Config
    ) -> None:
        self._register("consume_message_hooks", register)

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
        self._register("rpc_hooks", register)

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        self._register("put_message_hooks", register)


# --- requests -----------------------------------------------------------------------------------------------


def _send(body: bytes = b"body", properties: str = "", topic: str = "T", **fields: Any) -> Command:
    text = f"UNIQ_KEY\x01K\x02{properties}"
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic=topic, **({"queue_id": 0} | fields), properties=text
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, body)


def sends() -> list[Command]:
    """All kinds of sends, including some that a broker refuses."""
    items = batch.encode([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"TAGS\x01a\x02")])
    header = SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=1, properties="", batch=True)
    return [
        _send(),
        _send(b"x" * 5_000, "TAGS\x01a\x02KEYS\x01k1 k2\x02"),
        _send(properties="__SHARDINGKEY\x01o\x02"),
        _send(properties="DELAY\x012\x02"),
        _send(properties="WAIT\x01false\x02"),
        _send(queue_id=-1),
        request(
            RequestCode.SEND_MESSAGE,
            SendMessageRequestHeader(producer_group="p", topic="T", queue_id=0),
            b"first version",
        ),
        request(RequestCode.SEND_BATCH_MESSAGE, header, items),
        request(RequestCode.SEND_BATCH_MESSAGE, header, items[:-1]),
        _send(topic="%RETRY%g", reconsume_times=99, max_reconsume_times=1),
        _send(b""),
        _send(topic="not a topic"),
        _send(topic=""),
        _send(queue_id=999),
        _send(properties="TRAN_MSG\x01true\x02"),
        Command(code=RequestCode.SEND_MESSAGE_V2, ext={"a": "p"}, body=b"x"),
    ]


def consumption() -> list[Command]:
    """Pulls with and without messages, and send-backs; for use after `sends`."""

    def pull(**fields: Any) -> Command:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": 0,
            "sys_flag": 4,
            "subscription": "*",
        } | fields
        return request(RequestCode.PULL_MESSAGE, PullMessageRequestHeader(max_msg_nums=32, **values))

    def back(**fields: Any) -> Command:
        values: dict[str, Any] = {"offset": 0, "group": "g", "delay_level": 0} | fields
        return request(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(**values))

    return [
        pull(),
        pull(subscription="a"),
        pull(subscription="nothing"),
        pull(queue_offset=3),
        pull(queue_offset=10_000),
        pull(queue_id=99),
        pull(topic="None"),
        pull(sys_flag=0),
        back(),
        back(delay_level=-1),
        back(offset=7),
    ]


def administration() -> list[Command]:
    """Requests that change and read settings of the broker, valid and invalid."""
    create = CreateTopicRequestHeader(topic="New", read_queue_nums=1, write_queue_nums=1, perm=6)
    every = [
        Command(code=code, ext={"x": "y" * 1_000}, body=b"{") for code in RequestCode if code not in _UNSAFE
    ]
    return [
        request(RequestCode.UPDATE_AND_CREATE_TOPIC, create),
        request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"team"}'),
        request(RequestCode.GET_ALL_TOPIC_CONFIG),
        Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "New"}),
        *every,
        Command(code=123_456),
    ]


#: A busy machine occasionally slows any call, so a hook fails only when it is slow in every try.
TRIES = 3
#: The answer to this request differs from run to run.
_UNSAFE = {RequestCode.GET_BROKER_RUNTIME_INFO}


async def _answers(
    directory: Path, kind: str, hook: object, commands: Iterable[Command]
) -> tuple[list[Answered], RunningBroker]:
    """The answers of a broker with the hook to each request in turn; without a hook when it is None."""
    extra = [] if hook is None else [("under-test", _Plugin(kind, hook))]
    async with (
        running_broker(directory, extra=extra, scheme="memory") as broker,
        calling_broker(broker) as call,
    ):
        found = []
        for command in commands:
            answer = await call(command)
            found.append((answer.code, answer.remark))
    return found, broker


class _HookContract(ABC):
    """The common part of the contracts of a broker's hooks. `kind` is the name of their table in a
    Registry."""

    kind: ClassVar[str]
    #: Whether the hook refuses some of the tests' requests.
    may_refuse: ClassVar[bool] = False

    @abstractmethod
    def make_hook(self) -> Any:
        """The hook as the plugin registers it."""

    def commands(self) -> Sequence[Command]:
        """The requests of the tests: everything that this kind of hook sees."""
        raise NotImplementedError

    async def test_a_broker_answers_as_without_the_hook(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each request has the same code and text, unless the hook may refuse; the hook raises no unexpected
        error and is never slow."""
        plain, _ = await _answers(tmp_path / "without", self.kind, None, self.commands())
        for number in range(TRIES):
            caplog.clear()
            hooked, broker = await _answers(
                tmp_path / f"with-{number}", self.kind, self.make_hook(), self.commands()
            )
            complaints = [
                found.getMessage() for found in caplog.records if found.name == "rmqkit.plugin.hook_runner"
            ]
            if not complaints:
                break
        if not self.may_refuse:
            assert hooked == plain, "a broker with the hook answers differently"
        hooks: Hooks[Any] = getattr(broker.context.registry, self.kind)
        failures = {entry.title: entry.failures for entry in hooks.entries if entry.failures}
        assert not failures, f"the hook raised what it may not: {caplog.text}"
        assert complaints == [], "the hook is slow, or returns something"

    async def test_one_object_serves_again(self, tmp_path: Path) -> None:
        """A broker started again in the same process gets the same hook object."""
        hook = self.make_hook()
        first, _ = await _answers(tmp_path / "first", self.kind, hook, self.commands())
        second, _ = await _answers(tmp_path / "second", self.kind, hook, self.commands())
        assert self.may_refuse or first == second


class SendMessageHookContract(_HookContract):
    """Tests of every SendMessageHook."""

    kind = "send_message_hooks"

    def commands(self) -> Sequence[Command]:
        return sends()

    async def test_sends_that_arrive_together(self, tmp_path: Path) -> None:
        """Each send has its answer, and those that are not refused are stored in order."""
        extra = [("under-test", _Plugin(self.kind, self.make_hook()))]
        async with (
            running_broker(tmp_path, extra=extra, scheme="memory") as broker,
            calling_broker(broker) as call,
        ):
            first = (await call(_send())).code == ResponseCode.SUCCESS
            processor = SendProcessor(broker.context)
            data = b"".join(encode(_numbered(_send(b"%d" % at), at)) for at in range(20))
            peer = FakePeer()
            outcomes = processor.process(FrameDecoder().feed(data), peer)
            # A store with deferred writes may answer some later.
            await peer.all_answered()
            answers = [whole(outcome) for outcome in outcomes if outcome is not None] + peer.answers
            answers.sort(key=attrgetter("opaque"))
            store = broker.context.store
            stored = [
                record.unpack(store.read_record(unit.physical_offset) or b"").body
                for unit in store.read_units("T", 0, int(first), 100)
            ]
        assert [answer.opaque for answer in answers] == list(range(20))
        taken = [answer.opaque for answer in answers if answer.code == ResponseCode.SUCCESS]
        assert self.may_refuse or (first and len(taken) == 20), "the hook refuses a send"
        assert stored == [b"%d" % at for at in taken]


class ConsumeMessageHookContract(_HookContract):
    """Tests of every ConsumeMessageHook."""

    kind = "consume_message_hooks"

    def commands(self) -> Sequence[Command]:
        return [*sends(), *consumption()]


class RpcHookContract(_HookContract):
    """Tests of every RpcHook."""

    kind = "rpc_hooks"

    def commands(self) -> Sequence[Command]:
        return [*sends(), *consumption(), *administration()]

    def test_its_codes_are_numbers(self) -> None:
        """Its codes are numbers, or None for all requests."""
        codes = self.make_hook().codes
        assert codes is None or (
            isinstance(codes, frozenset) and all(isinstance(code, int) for code in codes)
        )

    def test_before_without_after(self) -> None:
        """A request may stay without an answer, because its connection ended or it is one-way: the hook must
        accept that."""
        hook, peer = self.make_hook(), FakePeer()
        for command in self._seen_by(hook):
            for oneway in (False, True):
                self._refused(hook, [msgspec.structs.replace(command, flag=2 if oneway else 0)], peer)

    def test_a_run_of_requests(self) -> None:
        """A hook names the requests of a run that it refuses by their indexes, and accepts answers of every
        form, whether they come for the whole run or for parts of it."""
        hook, peer = self.make_hook(), FakePeer()
        run = self._seen_by(hook)
        forms = (
            lambda request: encode(answer(request)),
            lambda request: answer(request, ResponseCode.SYSTEM_ERROR, "no"),
            lambda request: Reply(answer(request), [b"x"], 1),
        )
        for part in (run, run[: len(run) // 2], run[-1:]):
            assert self._refused(hook, run, peer) <= set(range(len(run)))
            for form in forms:
                hook.after(part, Answers([form(request) for request in part]), peer)

    def test_a_run_that_has_waited(self) -> None:
        """A hook that looks at requests which have waited names those that it refuses by their indexes."""
        hook = self.make_hook()
        assert hook.patience_s >= 0
        if hook.patience_s < inf:
            run = self._seen_by(hook)
            refused = hook.waited(run, FakePeer(), hook.patience_s) or {}
            assert set(refused) <= set(range(len(run)))
            assert all(isinstance(error, RequestRefused) for error in refused.values())

    def _seen_by(self, hook: RpcHook) -> list[Command]:
        return [command for command in self.commands() if hook.codes is None or command.code in hook.codes]

    def _refused(self, hook: RpcHook, run: Sequence[Command], peer: FakePeer) -> set[int]:
        """The indexes that the hook refuses."""
        try:
            refused = hook.before(run, peer) or {}
        except RequestRefused:
            refused = dict.fromkeys(range(len(run)), RequestRefused(ResponseCode.NO_PERMISSION, ""))
        assert self.may_refuse or not refused, "the hook refuses a request"
        assert all(isinstance(error, RequestRefused) for error in refused.values()), (
            f"the hook broke: {refused}"
        )
        return set(refused)


class PutMessageHookContract(_HookContract):
    """Tests of every PutMessageHook. `interesting` are properties of messages on which the hook acts."""

    kind = "put_message_hooks"
    interesting: ClassVar[Sequence[dict[str, str]]] = ()

    def commands(self) -> Sequence[Command]:
        return sends()

    def messages(self) -> list[PutMessage]:
        """Messages of all kinds."""
        plain = [
            message("T", 0, b"x", unique_key="a", tag="t"),
            message("%RETRY%g", 0, b"x"),
            message("T", 3, b"x" * 1_000, keys="k1 k2"),
        ]
        special = [message("T", 0, b"x") for _ in self.interesting]
        for each, properties in zip(special, self.interesting, strict=True):
            each.set_properties(properties)
        return plain + special

    def shown(self, hook: PutMessageHook) -> MessageRun:
        """The messages that a broker would pass to the hook."""
        wants, topics = hook.wants, hook.topics
        return MessageRun(
            [
                each
                for each in self.messages()
                if not (wants and wants.isdisjoint(each.properties))
                and (topics is None or each.topic in topics)
            ]
        )

    def test_what_it_leaves_can_be_stored(self) -> None:
        """A message that the hook does not refuse has equal properties as text and as a mapping, and can be
        packed into a record; its tags code is that of its tag unless the hook changed the topic."""
        hook = self.make_hook()
        run = self.shown(hook)
        befores = [msgspec.structs.replace(each) for each in run]
        refused = _refused(hook, run)
        assert self.may_refuse or not refused, "the hook refuses a message"
        for at, (each, before) in enumerate(zip(run, befores, strict=True)):
            if at in refused:
                continue
            assert props.decode(each.properties_bytes.decode()) == {
                name: value for name, value in each.properties.items() if value
            }
            assert each.queue_id >= 0
            assert each.body == before.body or self.interesting, (
                "the hook changes the body of a message that is not its business"
            )
            if each.topic == before.topic:
                assert each.tags_code == tags_code(each.properties.get(props.TAGS))
            packed = record.pack(
                each, record.message_size(each), 0, 0, 0, b"\x7f\x00\x00\x01\x00\x00\x00\x00"
            )
            assert record.unpack(packed).topic == each.topic

    def test_messages_that_come_together_are_treated_one_by_one(self) -> None:
        """The result for a message does not depend on the other messages of its run."""
        hook = self.make_hook()
        together = self.shown(hook)
        refused = _refused(hook, together)
        for at, (each, after) in enumerate(zip(self.shown(hook), together, strict=True)):
            alone = MessageRun([each])
            assert bool(_refused(hook, alone)) == (at in refused), "the hook refuses the neighbours as well"
            assert each == after

    def test_its_claims_are_among_what_it_wants(self) -> None:
        """A property for which the hook takes responsibility is among the properties it wants."""
        hook = self.make_hook()
        assert hook.wants is None or hook.claims <= hook.wants

    def test_what_it_marks_for_later_it_parks(self) -> None:
        """A hook that delivers later (`rmqkit.plugin.later`) recognises what it has marked and moves it to
        another topic; it leaves alone what it cannot deliver."""
        hook = self.make_hook()
        if not isinstance(hook, LaterDelivery):
            return
        dues: list[Due] = [Level(level) for level in (0, 1, 2, 1_000)]
        dues += [Time(_NOW_MS + ms) for ms in (1, 1_000, 5_500, 3_600_000, 315_360_000_000)]
        marked = 0
        for due in dues:
            before, each = (message("T", 3, b"x", unique_key="a", tag="t") for _ in range(2))
            if not hook.mark(each, due, _NOW_MS):
                assert each == before, f"the hook changes a message that it cannot deliver at {due}"
                continue
            marked += 1
            assert (each.topic, each.queue_id) == ("T", 3), "the hook moves the message before it is put"
            assert not (hook.wants and hook.wants.isdisjoint(each.properties)), "the hook will not see it"
            assert not _refused(hook, MessageRun([each])), f"the hook refuses what it has marked for {due}"
            assert each.topic != "T", f"the hook does not park what it has marked for {due}"
        assert marked, "the hook delivers at no time and level"


def _refused(hook: PutMessageHook, run: MessageRun) -> Collection[int]:
    """The indexes of the messages that the hook refuses."""
    try:
        refusals = hook.before_put(run) or {}
    except RequestRefused:
        return range(len(run))
    assert all(isinstance(error, RequestRefused) for error in refusals.values()), "the hook failed"
    return refusals.keys()


def _numbered(command: Command, opaque: int) -> Command:
    command.opaque = opaque
    return command
