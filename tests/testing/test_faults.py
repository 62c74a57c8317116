"""The table of faults: which requests a fault strikes, how often, and what a struck request becomes."""

from __future__ import annotations

import pytest

from rmqkit.errors import RequestDelayed, RequestRefused
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RegisterBrokerRequestHeader, SendMessageRequestHeaderV2
from rmqkit.testing import faults
from rmqkit.testing.faults import NAME_SERVER, Faults
from rmqkit.testing.peer import FakePeer


def send(topic: str = "T", queue_id: int = 0) -> Command:
    header = SendMessageRequestHeaderV2(producer_group="p", topic=topic, queue_id=queue_id)
    return request(RequestCode.SEND_MESSAGE_V2, header, b"body")


def busy(table: Faults, **which: object) -> faults.Fault:
    strike = faults.failing(ResponseCode.SYSTEM_BUSY, "busy")
    return table.add(strike, times=None, **which)  # type: ignore[arg-type]


def struck(table: Faults, *requests: Command, server: str = "broker-a") -> list[int]:
    """The indexes of the requests that are refused."""
    return sorted(table.strike(server, requests, FakePeer()) or {})


def test_a_fault_strikes_what_it_names() -> None:
    """Topic, queue and server narrow it; a request without a readable destination is not struck."""
    table = Faults()
    fault = busy(table, queue=MessageQueue("T", "broker-a", 1))
    runs = [send(), send(queue_id=1), send("Other", 1), Command(RequestCode.SEND_MESSAGE_V2)]
    assert struck(table, *runs) == [1]
    assert struck(table, *runs, server="broker-b") == []
    fault.remove()
    fault.remove()
    assert struck(table, *runs) == []
    busy(table, request=["pull", RequestCode.GET_MAX_OFFSET], topic="T")
    strange = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "none"})
    assert struck(table, Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "T"}), send(), strange) == [0]


def test_the_oldest_fault_strikes_until_it_is_used_up() -> None:
    """The next one has its turn after that; `struck` counts."""
    table = Faults()
    first = table.add(faults.failing(ResponseCode.SYSTEM_BUSY, "first"), times=2)
    second = table.add(faults.delaying(3), times=1)
    found = table.strike("broker-a", [send() for _ in range(4)], FakePeer()) or {}
    assert {at: type(error) for at, error in found.items()} == {
        0: RequestRefused,
        1: RequestRefused,
        2: RequestDelayed,
    }
    assert (first.struck, second.struck) == (2, 1)


def test_a_lost_answer_and_a_cut_connection() -> None:
    """A request without an answer is processed; after a cut nothing is answered, and the connection is
    closed."""
    table, peer = Faults(), FakePeer()
    table.add(faults.losing_answers(), times=1)
    table.add(faults.cutting(), times=1)
    requests = [send(), send(), send()]
    assert list(table.strike("broker-a", requests, peer) or {}) == [1]
    assert [each.is_oneway for each in requests] == [True, True, False]
    assert peer.closed


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda table: busy(table, request="sends"), "must be one of send, pull, .*any"),
        (lambda table: table.add(faults.delaying(1), times=0), "at least 1, or None"),
        (lambda _: faults.failing(ResponseCode.FLUSH_DISK_TIMEOUT, ""), "a message is stored"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(add: object, text: str) -> None:
    """The error names what there is, and nothing is added."""
    table = Faults()
    assert callable(add)
    with pytest.raises(ValueError, match=text):
        add(table)
    assert struck(table, send()) == []


async def test_an_absent_broker_is_cut_off_at_the_name_server_too() -> None:
    """Only its own connections are closed there, and everything ends with the block."""
    table = Faults()
    peers = {name: FakePeer() for name in ("broker-a", "broker-b")}
    for name, peer in peers.items():
        header = RegisterBrokerRequestHeader(broker_name=name, broker_addr="", cluster_name="", broker_id=0)
        table.strike(NAME_SERVER, [request(RequestCode.REGISTER_BROKER, header)], peer)
    with table.away("broker-a"):
        assert {name: peer.closed for name, peer in peers.items()} == {"broker-a": True, "broker-b": False}
        assert struck(table, send()) == [0]
        assert struck(table, send(), server="broker-b") == []
        assert list(table.strike(NAME_SERVER, [Command(1)], peers["broker-a"]) or {}) == [0]
    assert struck(table, send()) == []


async def test_a_registration_is_awaited_once() -> None:
    """The event of a broker is that of its next registration."""
    table = Faults()
    awaited = table.registration("broker-a")
    assert table.registration("broker-a") is awaited
    table.note_registration("broker-b")
    assert not awaited.is_set()
    table.note_registration("broker-a")
    assert awaited.is_set()
    assert not table.registration("broker-a").is_set()
