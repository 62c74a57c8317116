"""Leases in a store directory that moves between Apache's broker and ours."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import header_fields
from rmqkit.protocol.headers import AckMessageRequestHeader, PopMessageRequestHeader, SendMessageRequestHeader
from rmqkit.protocol.receipt import parse_receipt
from rmqkit.protocol.record import unpack_all
from tests.interop import peers
from tests.interop.builds import SERVER_VERSION
from tests.interop.test_replication import NO_TLS, OURS, our_broker, our_namesrv
from tests.ports import LOOPBACK

TOPIC, GROUP, BROKER = "Leased", "poppers", "leasing"
SETTINGS: Mapping[str, object] = {
    "brokerName": BROKER,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeTimerLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 600_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "maxMessageSize": 65_536,
    "defaultTopicQueueNums": 1,
}
MESSAGES = 8
LEASE_MS = 20_000
PATIENCE_S = 150
#: No message, or a broker that still reads its leases.
NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.SERVICE_NOT_AVAILABLE)


def serving(kind: str, home: Path, namesrv: str, port: int) -> AbstractContextManager[peers.Server]:
    if kind == OURS:
        return our_broker(home, home / "store", namesrv, port, SETTINGS)
    return peers.apache_broker(
        home, namesrv, port=port, store=home / "store", settings=SETTINGS, version=kind, options=NO_TLS
    )


def send(address: str) -> None:
    for number in range(MESSAGES):
        header = SendMessageRequestHeader(
            producer_group="p", topic=TOPIC, queue_id=0, default_topic_queue_nums=1
        )
        sent = peers.call(address, RequestCode.SEND_MESSAGE, header_fields(header), b"%d" % number)
        assert sent.code == ResponseCode.SUCCESS, sent.remark


def pop(address: str) -> dict[int, tuple[str, int]]:
    """Number of each message that is delivered -> its handle, and its reconsumptions."""
    header = PopMessageRequestHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        max_msg_nums=32,
        invisible_time=LEASE_MS,
        poll_time=1_000,
        born_time=int(time.time() * 1000),
    )
    found = peers.call(address, RequestCode.POP_MESSAGE, header_fields(header))
    if found.code != ResponseCode.SUCCESS:
        assert found.code in NOTHING, found.remark
        return {}
    fields = found.fields
    start = fields["startOffsetInfo"].split(" ")[2] if fields["startOffsetInfo"].startswith("0 ") else "0"
    own = f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 {BROKER}"
    return {
        int(each.body): (
            each.properties.get("POP_CK") or f"{own} {each.queue_id} {each.queue_offset}",
            each.reconsume_times,
        )
        for each in unpack_all(found.body)
    }


def ack(address: str, text: str) -> None:
    handle = parse_receipt(text)
    assert handle.offset is not None
    header = AckMessageRequestHeader(
        consumer_group=GROUP,
        topic=handle.topic(TOPIC, GROUP),
        queue_id=handle.queue_id,
        extra_info=text,
        offset=handle.offset,
    )
    answer = peers.call(address, RequestCode.ACK_MESSAGE, header_fields(header))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize(("first", "second"), [(SERVER_VERSION, OURS), (OURS, SERVER_VERSION)])
def test_leases_move_with_their_directory(first: str, second: str, tmp_path: Path) -> None:
    """What one broker has leased, and what was not acknowledged there, the other one delivers again, once and
    with one more reconsumption, when its lease is over. What was acknowledged does not come again."""
    port = peers.free_broker_port()
    address = f"{LOOPBACK}:{port}"
    with our_namesrv(tmp_path) as namesrv:
        with serving(first, tmp_path, namesrv, port):
            send(address)
            handles: dict[int, tuple[str, int]] = {}
            end_s = time.monotonic() + 20
            while len(handles) < MESSAGES and time.monotonic() < end_s:
                handles |= pop(address)
            leased_s = time.monotonic()
            assert set(handles) == set(range(MESSAGES))
            for number in range(0, MESSAGES, 2):
                ack(address, handles[number][0])
        again: dict[int, int] = {}
        with serving(second, tmp_path, namesrv, port):
            wanted = set(range(1, MESSAGES, 2))
            end_s = time.monotonic() + PATIENCE_S
            while set(again) != wanted and time.monotonic() < end_s:
                for number, (text, times) in pop(address).items():
                    assert time.monotonic() - leased_s > LEASE_MS / 1000 - 1, "before the end of its lease"
                    assert number not in again
                    again[number] = times
                    ack(address, text)
    assert again == dict.fromkeys(wanted, 1)
