"""Classes from a table of messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_grpc.schema import File, private_pool

TABLE = r"""
Inner | text 1 s | kind 2 Kind
Outer | inner 1 Inner | many 2 Inner* | maybe 3 i? | names 4 map | one 5 l /either | other 6 b /either \
    | at 7 T | lasting 8 D? | flag 9 B | factor 10 f | later 11 s?
"""
ENUMS = "Kind | NOTHING 0 | THING 7"
SERVICE = "Doing | Do Inner Outer | Watch Inner* Outer*"


@pytest.fixture(scope="module")
def made() -> File:
    return File(private_pool(), "test/table.proto", "test.table", TABLE, ENUMS, SERVICE)


def test_fields_have_their_numbers_and_types(made: File) -> None:
    """The bytes are those that the numbers and types of the table say."""
    outer = made.messages["Outer"]()
    outer.inner.text, outer.inner.kind = "a", 7
    outer.many.add(text="b")
    outer.names["k"] = "v"
    outer.at.seconds = 1
    outer.flag = True
    assert outer.SerializeToString() == bytes.fromhex(
        "0a05 0a0161 1007".replace(" ", "")
        + "1203 0a0162".replace(" ", "")
        + "2206 0a016b 120176".replace(" ", "")
        + "3a02 0801 4801".replace(" ", "")
    )


def test_presence_and_choices(made: File) -> None:
    """Optional fields know whether they are set, and of a group of fields one is set."""
    outer = made.messages["Outer"]()
    assert not outer.HasField("maybe")
    outer.maybe = 0
    assert outer.HasField("maybe")
    assert not outer.HasField("lasting")
    outer.one = 3
    outer.other = b"x"
    assert (outer.WhichOneof("either"), outer.one) == ("other", 0)


def test_services_and_enums_are_described(made: File) -> None:
    """Reflection shows the file as it would be compiled."""
    proto = descriptor_pb2.FileDescriptorProto.FromString(made.text)
    do, watch = proto.service[0].method
    assert (do.name, do.input_type, do.output_type) == ("Do", ".test.table.Inner", ".test.table.Outer")
    assert (do.client_streaming, do.server_streaming) == (False, False)
    assert (watch.client_streaming, watch.server_streaming) == (True, True)
    assert made.enums == {"Kind": {"NOTHING": 0, "THING": 7}}


def test_the_default_pool_does_not_know_the_messages(made: File) -> None:
    """A program may have other definitions of the same names in the pool of the process."""
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("test.table.Outer")
    again: Any = File(private_pool(), "test/table.proto", "test.table", TABLE, ENUMS)
    assert again.messages["Outer"] is not made.messages["Outer"]


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.lists(st.text(), max_size=3))
def test_values_come_back(made: File, text: str, number: int, texts: list[str]) -> None:
    """What is encoded is decoded as it was."""
    outer = made.messages["Outer"](one=number, later=text)
    for each in texts:
        outer.names[each] = each
    assert made.messages["Outer"].FromString(outer.SerializeToString()) == outer
