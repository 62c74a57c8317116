"""Runs of sends as hooks see them, and the hooks that take one element at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqkit.errors import RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hooks import EachPutHook, EachSendHook, SendContext, SendingBroker, SendRun
from rmqkit.plugin.request import Answers, Peer
from rmqkit.plugin.request_hooks import EachRequestHook, RpcHook
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.message_id import pack_host
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message

BROKER = SendingBroker("127.0.0.1:10911", "region", pack_host("127.0.0.1", 10_911))


def run_of(*keys: str, peers: Sequence[Peer] = ()) -> SendRun:
    """A run of sends with these unique keys."""
    headers = [
        SendMessageRequestHeaderV2(
            producer_group="p", topic="T", queue_id=0, properties=f"UNIQ_KEY\x01{key}\x02TAGS\x01a\x02"
        )
        for key in keys
    ]
    requests = [request(RequestCode.SEND_MESSAGE_V2, header, b"body") for header in headers]
    return SendRun(BROKER, 0, requests, peers or [FakePeer()] * len(keys), headers)


def stored(run: SendRun, sizes: list[int] | None = None) -> SendRun:
    """The run as it is when its messages have been stored."""
    count = len(run) if sizes is None else sum(sizes)
    run.messages = [message(unique_key=f"m{at}") for at in range(count)]
    run.results = [Appended(at, 100 * at, 10, 0) for at in range(count)]
    run.sizes = sizes
    return run.ended(ResponseCode.SUCCESS)


def test_a_run_is_a_sequence_of_contexts() -> None:
    """Each context is made once, from either end, and none beyond the ends."""
    run = run_of("a", "b", "c")
    assert run[-1] is run[2] is list(run)[2]
    assert [context.message_id for context in run[1:]] == ["b", "c"]
    for at in (3, -4):
        with pytest.raises(IndexError, match=f"{at} is not an index of a run of 3 sends"):
            _ = run[at]
    assert list(run_of()) == []


def test_a_batch_has_its_own_part_of_the_results() -> None:
    """Messages, places and ids of a send are those between the sends before and behind it; a batch without an
    id for each message has none."""
    run = stored(run_of("a", "b", "c"), [1, 2, 0])
    assert [context.message_count for context in run] == [1, 2, 0]
    assert [context.queue_offset for context in run] == [0, 1, -1]
    assert [context.stored_bytes for context in run] == [10, 20, 0]
    assert run[1].message_id == "m1,m2"
    assert run[2].offset_message_id is None
    assert (run[1].offset_message_id or "").count(",") == 1
    run.messages = [message(unique_key="m0"), message(), message(unique_key="m2")]
    assert run[1].message_id is None


def test_a_selection_takes_the_contexts_and_their_parts_along() -> None:
    """What a hook has noted of a send before is there after, under the new index."""
    run = stored(run_of("a", "b", "c"), [1, 2, 1])
    kept = run[2]
    kept.notes["hook"] = "noted"
    assert run.select([0, 1, 2]) is run
    part = run.select([1, 2])
    assert part[1] is kept
    assert (kept.notes, kept.queue_offset, kept.message_id) == ({"hook": "noted"}, 3, "c")
    assert [at.queue_offset for at in part.results] == [1, 2, 3]
    assert (part.code, part.success) == (-1, False)


def test_the_sends_of_each_connection_are_neighbours() -> None:
    """A run is divided where the connection changes."""
    first, second = FakePeer(port=1), FakePeer(port=2)
    assert run_of("a", "b", peers=[first, first]).by_peer() == [slice(2)]
    found = run_of("a", "b", "c", peers=[first, second, second]).by_peer()
    assert found == [slice(0, 1), slice(1, 3)]


class Sends(EachSendHook):
    """Refuses the second send; fails at the first two outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str | None] = []

    def before_each(self, context: SendContext) -> None:
        if context.message_id == "b":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "second")

    def after_each(self, context: SendContext) -> None:
        self.outcomes.append(context.message_id)
        if len(self.outcomes) < 3:
            raise ValueError(f"outcome {len(self.outcomes)}")


class Puts(EachPutHook):
    """Moves the first message and refuses the second one."""

    def before_each(self, message: PutMessage) -> None:
        if message.body == b"b":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "second")
        message.topic = "Moved"


class Requests(EachRequestHook):
    """Refuses the second request; fails at the first outcome."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, int]] = []

    def before_each(self, request: Command, peer: Peer) -> None:
        if request.body == b"b":
            raise RequestRefused(ResponseCode.NO_PERMISSION, "second")

    def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
        self.outcomes.append((request.opaque, answer.opaque))
        if len(self.outcomes) == 1:
            raise ValueError("outcome 1")


def refused(found: object) -> list[tuple[int, str]]:
    assert isinstance(found, dict)
    return [(at, str(error)) for at, error in found.items()]


def test_one_refused_element_leaves_its_neighbours() -> None:
    """Hooks that take one element at a time refuse by its index, and nothing where none was refused."""
    assert [at for at, _ in refused(Sends().before(run_of("a", "b", "c")))] == [1]
    assert Sends().before(run_of("a", "c")) is None
    messages = [message(body=body) for body in (b"a", b"b", b"c")]
    assert [at for at, _ in refused(Puts().before_put(MessageRun(messages)))] == [1]
    assert [each.topic for each in messages] == ["Moved", "Orders", "Moved"]
    requests = [Command(code=1, body=body) for body in (b"a", b"b")]
    assert [at for at, _ in refused(Requests().before(requests, FakePeer()))] == [1]
    assert Requests().before(requests[:1], FakePeer()) is None


def test_a_failure_keeps_no_outcome_from_the_others() -> None:
    """All elements are observed, then the first error is raised."""
    sends = Sends()
    with pytest.raises(ValueError, match="outcome 1"):
        sends.after(run_of("a", "b", "c"))
    assert sends.outcomes == ["a", "b", "c"]
    each = Requests()
    requests = [Command(code=1, opaque=1), Command(code=1, opaque=2)]
    with pytest.raises(ValueError, match="outcome 1"):
        each.after(requests, Answers([answer(one) for one in requests]), FakePeer())
    assert each.outcomes == [(1, 1), (2, 2)]


def test_answers_are_shown_to_those_who_look() -> None:
    """A hook that leaves the answers alone costs them nothing."""

    class Before(EachRequestHook):
        def before_each(self, request: Command, peer: Peer) -> None:
            return

    class After(RpcHook):
        def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
            return

    seen = {type(hook).__name__: hook.sees_answers for hook in (RpcHook(), Before(), Requests(), After())}
    assert seen == {"RpcHook": False, "Before": False, "Requests": True, "After": True}
