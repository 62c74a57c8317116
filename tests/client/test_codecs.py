"""Codecs: bodies of values, the types that they refuse, schemas, errors without what is secret."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import attrs
import msgspec
import pytest
from google.protobuf.struct_pb2 import Struct as ProtobufStruct
from google.protobuf.wrappers_pb2 import StringValue
from pydantic import BaseModel

from rmqkit.client import ClientError, MissingExtra, codecs
from rmqkit.client.codecs import Codec


class Order(msgspec.Struct):
    name: str
    amount: int = 0


class Refund(msgspec.Struct):
    name: str


@dataclass
class Plain:
    name: str


@attrs.frozen
class Framed:
    name: str


class Typed(TypedDict):
    name: str


class Model(BaseModel):
    name: str
    secret: int = 0


class Foreign:
    """A class that msgspec knows nothing of."""


class Tree(msgspec.Struct):
    children: list[Tree] = []


class WithForeign(msgspec.Struct):
    parts: dict[str, list[Foreign]]


@pytest.mark.parametrize(
    ("codec", "value", "content_type"),
    [
        (codecs.json(Order), Order("a", 1), "application/json"),
        (codecs.msgpack(Order), Order("a", 1), "application/msgpack"),
        (codecs.json(Plain), Plain("a"), "application/json"),
        (codecs.json(Framed), Framed("a"), "application/json"),
        (codecs.json(Typed), {"name": "a"}, "application/json"),
        (codecs.json(list[Order]), [Order("a"), Order("b")], "application/json"),
        (codecs.json(int | str), 5, "application/json"),
        (codecs.json(float), 5, "application/json"),
        (codecs.json(Any), {"a": [1, None]}, "application/json"),
        (codecs.json(Tree), Tree([Tree()]), "application/json"),
        (codecs.pydantic(Model), Model(name="a"), "application/json"),
        (codecs.pydantic(list[Model]), [Model(name="a")], "application/json"),
        (codecs.protobuf(StringValue), StringValue(value="a"), "application/protobuf"),
    ],
)
def test_what_is_decoded_is_what_was_encoded(codec: Codec[Any], value: object, content_type: str) -> None:
    """For structs, dataclasses, attrs classes, typed dictionaries, models, messages and other types."""
    body = codec.encode(value)
    assert type(body) is bytes
    assert codec.decode(body) == value
    assert codec.content_type == content_type


@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [
        (Order, Order("a", 1), b'{"name":"a","amount":1}'),
        (Model, Model(name="a"), b'{"name":"a","secret":0}'),
        (StringValue, StringValue(value="a"), b"\n\x01a"),
        (dict[str, int], {"a": 1}, b'{"a":1}'),
    ],
)
def test_the_codec_of_a_type(kind: Any, value: object, body: bytes) -> None:
    """Is pydantic's for models, protobuf's for messages, else JSON."""
    assert codecs.codec_of(kind).encode(value) == body


@pytest.mark.parametrize("make", [codecs.json, codecs.msgpack])
@pytest.mark.parametrize("kind", [Foreign, WithForeign, list[Foreign], Model])
def test_a_type_that_would_never_be_decoded_is_refused(make: Any, kind: Any) -> None:
    """When the codec is made, wherever in the type the unknown class is."""
    with pytest.raises(ClientError, match=r"is a type that msgspec does not know; use codecs\.pydantic"):
        make(kind)


def test_a_type_that_is_ambiguous_is_refused() -> None:
    """Such as a union of classes that look alike."""
    with pytest.raises(ClientError, match=r"cannot be decoded: .*union"):
        codecs.json(Order | Refund)


def test_only_classes_of_protobuf_are_messages() -> None:
    """Any other class is named in the error."""
    with pytest.raises(ClientError, match="Order'> is not a message class of protobuf"):
        codecs.protobuf(Order)


@pytest.mark.parametrize("codec", [codecs.json(Order), codecs.msgpack(Order), codecs.pydantic(Model)])
def test_a_value_of_another_type_is_not_encoded(codec: Codec[Any]) -> None:
    """It would be a dead letter of every consumer."""
    with pytest.raises(TypeError, match=r"a value of (Order|Model) is expected, not of Refund"):
        codec.encode(Refund("a"))


@pytest.mark.parametrize(
    ("codec", "body", "reason"),
    [
        (codecs.json(Order), b"{", "Input data was truncated"),
        (codecs.json(Order), b'{"name":5}', r"Expected `str`, got `int` - at `\$.name`"),
        (codecs.msgpack(Order), b"\xc1", "MessagePack data is malformed"),
        (codecs.pydantic(Model), b'{"secret":1}', "name: Field required"),
        (codecs.pydantic(Model), b"no JSON", "Invalid JSON"),
        (codecs.protobuf(ProtobufStruct), b"\xff\xff", "pars"),
    ],
)
def test_a_wrong_body_has_a_reason(codec: Codec[Any], body: bytes, reason: str) -> None:
    """Which says what is wrong."""
    with pytest.raises(Exception, match=reason):
        codec.decode(body)


def test_the_reason_of_a_model_has_no_content() -> None:
    """Dead letters and logs have the reason, and a body may have secrets."""
    with pytest.raises(ClientError) as caught:
        codecs.pydantic(Model).decode(b'{"name":"a","secret":"hunter2"}')
    assert "secret: Input should be a valid integer" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_models_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error names the extra, and all else works."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtra, match=r"need the package pydantic: .*pydantic\]"):
        codecs.pydantic(int)
    assert codecs.codec_of(Order).decode(b'{"name":"a"}') == Order("a")


def test_schemas() -> None:
    """Of structs by msgspec, of models by pydantic; messages have their .proto files."""
    schema = codecs.json_schema(Order)
    assert schema["$defs"]["Order"]["required"] == ["name"]
    assert codecs.json_schema(Model)["properties"]["name"]["type"] == "string"
    assert codecs.json_schema(list[int]) == {"type": "array", "items": {"type": "integer"}}
    with pytest.raises(ClientError, match=r"StringValue is described by its .proto file"):
        codecs.json_schema(StringValue)
    with pytest.raises(ClientError, match="a type that msgspec does not know"):
        codecs.json_schema(Foreign)
