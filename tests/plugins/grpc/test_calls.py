"""Calls with messages that no client sends."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from rmqkit.testing.broker import running_broker
from rmqkit_grpc.framing import GrpcStatus, framed
from rmqkit_grpc.methods import METHODS, Kind, Method
from tests.plugins.grpc.client import CODES, M, connected, message, resource, sending

ROUNDS = 40
_TEXTS = ["", " ", "T", "G", "%", "%RETRY%G", "\x00", "ä" * 100, "x" * 300, "TBW102", "A||B", "*", "a = 'b'"]
_NUMBERS = [0, 1, -1, 7, 2**31 - 1, -(2**31)]
_LONG = [*_NUMBERS, 2**63 - 1, -(2**63)]
_HANDLES = ["", "1 2 3 0 0 broker-a 0 0 0", "9 " * 8 + "9", "0 0 0 0 3 b 0 0", "-1 1 1 1 0 broker-a 0 0 0"]


def filled(made: Any, random: Random, depth: int = 0) -> Any:
    """The message with some fields set to odd values."""
    for field in made.DESCRIPTOR.fields:
        if random.random() < 0.35 or depth > 4:
            continue
        if field.is_repeated:
            entry = field.message_type
            if entry is not None and entry.GetOptions().map_entry:
                getattr(made, field.name)[random.choice(_TEXTS)] = random.choice(_TEXTS)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                for _ in range(random.randrange(3)):
                    filled(getattr(made, field.name).add(), random, depth + 1)
            else:
                getattr(made, field.name).extend(_value(field, random) for _ in range(random.randrange(3)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = getattr(made, field.name)
            inner.SetInParent()
            filled(inner, random, depth + 1)
        else:
            setattr(made, field.name, _value(field, random))
    return made


def _value(field: FieldDescriptor, random: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(_HANDLES if "handle" in field.name else _TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice([b"", b"x", bytes(100)])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return random.random() < 0.5
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return random.choice([0.0, -1.0, float("nan"), float("inf")])
    if field.type == FieldDescriptor.TYPE_INT64:
        return random.choice(_LONG)
    return random.choice(_NUMBERS)


@pytest.mark.parametrize(("path", "method"), METHODS.items(), ids=[each.name for each in METHODS.values()])
async def test_odd_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, method: Method
) -> None:
    """Every call is answered, by a status of its own or of gRPC, without a fault of the server; the
    connection and the broker go on."""
    random = Random(path)
    async with running_broker(tmp_path) as running, connected(running) as client:
        await client.call("SendMessage", sending(message("T")))
        for number in range(ROUNDS):
            data = filled(method.request(), random).SerializeToString()
            if number % 4 == 3:
                broken = bytearray(data or b"\x0a")
                broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
                data = bytes(broken)
            stream = await client.begin(path, end=False, grpc_timeout="700m")
            await client.send_data(stream, framed(data), end=True)
            if method.kind is Kind.WATCH:
                # What is answered stays open.
                reply = await client.until_answered(stream)
            else:
                reply = await client.until_ended(stream)
                assert reply.status is not None
            assert reply.status != GrpcStatus.INTERNAL, reply.text
            if method.kind is Kind.UNARY and not reply.status:
                assert len(reply.data) == 1
        route = await client.call("QueryRoute", M["QueryRouteRequest"](topic=resource("T")))
        assert route.status.code == CODES["OK"]
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
