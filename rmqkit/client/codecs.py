"""Values instead of bytes: what turns a value into the body of a message and back.

    orders = codecs.json(Order)
    client.producer("shop", codec=orders)
    client.push_consumer("billing", subscribe="Orders", codec=orders)

`codec_of` chooses the codec of a type: that of pydantic for its models, that of protobuf for its messages,
else JSON by msgspec. A codec of one's own has the three members of `Codec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, is_typeddict, overload

import msgspec
from attrs import frozen

from rmqkit.errors import ClientError, MissingExtra
from rmqkit.model import properties as props

if TYPE_CHECKING:
    # With a default, which Python knows from 3.13 on: type checkers alone need it.
    from typing_extensions import TypeVar

    #: The type of `ReceivedMessage.value`.
    Value = TypeVar("Value", default=Any)
    #: What a producer sends.
    Body = TypeVar("Body", default=bytes)
else:
    from typing import TypeVar

    Value = TypeVar("Value")
    Body = TypeVar("Body")
T = TypeVar("T")

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
PROTOBUF: Final = "application/protobuf"


class Codec(Protocol[T]):
    """Turns values into bodies and back. Used in the event loop, so it must not block."""

    @property
    def content_type(self) -> str:
        """What the bodies are, such as application/json; noted in the property `contentType`."""

    def encode(self, value: T, /) -> bytes:
        """The body of a value: at least one byte, or brokers refuse it. Raises TypeError for a value of
        another type, and other errors for one that cannot be encoded; both reach the sender."""

    def decode(self, body: bytes, /) -> T:
        """The value of a body. Any error makes the message a dead letter, which has the error's text: it must
        not contain what is secret in the body."""


@frozen
class _Codec(Generic[T]):
    """A codec made of two functions. `kind` is the type of its values, Any if that cannot be checked."""

    kind: Any
    content_type: str
    _encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], T]

    def encode(self, value: T, /) -> bytes:
        if self.kind is not Any and not isinstance(value, self.kind):
            raise TypeError(f"a value of {self.kind.__name__} is expected, not of {type(value).__name__}")
        return self._encode(value)

    def decode(self, body: bytes, /) -> T:
        return self._decode(body)


@overload
def json(kind: type[T]) -> Codec[T]: ...
@overload
def json(kind: Any) -> Codec[Any]: ...
def json(kind: Any) -> Codec[Any]:
    """JSON by msgspec: of structs, dataclasses, attrs classes, typed dictionaries, and all else that msgspec
    knows. Raises ClientError for a type that it does not know."""
    _check_known(kind)
    return _Codec(_checked(kind), JSON, msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)


@overload
def msgpack(kind: type[T]) -> Codec[T]: ...
@overload
def msgpack(kind: Any) -> Codec[Any]: ...
def msgpack(kind: Any) -> Codec[Any]:
    """MessagePack by msgspec, of the types that `json` takes. Raises as `json`."""
    _check_known(kind)
    return _Codec(
        _checked(kind), MSGPACK, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    )


@overload
def pydantic(kind: type[T]) -> Codec[T]: ...
@overload
def pydantic(kind: Any) -> Codec[Any]: ...
def pydantic(kind: Any) -> Codec[Any]:
    """JSON by pydantic: of its models, and of all that its TypeAdapter knows. The texts of its errors leave
    out what the body contains. Raises MissingExtra without the extra `pydantic`."""
    try:
        from pydantic import TypeAdapter, ValidationError
    except ImportError:
        raise MissingExtra("models need the package pydantic", "pydantic") from None
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def decode(body: bytes) -> Any:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise ClientError("; ".join(_where(each["loc"]) + each["msg"] for each in found)) from None

    return _Codec(_checked(kind), JSON, adapter.dump_json, decode)


def protobuf(kind: type[T]) -> Codec[T]:
    """The wire format of protobuf, of a generated message class. A message that has nothing set has no bytes,
    which brokers refuse. Raises ClientError for another class."""
    if not _is_protobuf(kind):
        raise ClientError(f"{kind!r} is not a message class of protobuf; protoc generates them")
    parse: Callable[[bytes], T] = kind.FromString  # type: ignore[attr-defined]
    return _Codec(kind, PROTOBUF, lambda value: bytes(value.SerializeToString()), parse)


@overload
def codec_of(kind: type[T]) -> Codec[T]: ...
@overload
def codec_of(kind: Any) -> Codec[Any]: ...
def codec_of(kind: Any) -> Codec[Any]:
    """The codec of a type: of pydantic for its models, of protobuf for its messages, else JSON by msgspec.
    Raises as `json`."""
    if _is_pydantic(kind):
        return pydantic(kind)
    if _is_protobuf(kind):
        return protobuf(kind)
    return json(kind)


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type, for programs in other languages: by pydantic for its models, else by
    msgspec. Raises ClientError for a type that has none."""
    if _is_pydantic(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    if _is_protobuf(kind):
        raise ClientError(f"{kind.__name__} is described by its .proto file, not by a JSON Schema")
    _check_known(kind)
    return msgspec.json.schema(kind)


def noted(codec: Codec[Any], properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message with the content type of its body, unless they name one."""
    return {props.CONTENT_TYPE: codec.content_type, **properties}


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def _is_protobuf(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "FromString") and hasattr(kind, "SerializeToString")


def _checked(kind: Any) -> Any:
    """The class of which values must be instances, or Any. Built-in types stand for others, as float for
    int."""
    is_class = isinstance(kind, type) and not is_typeddict(kind) and kind.__module__ != "builtins"
    return kind if is_class else Any


def _where(place: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, place))}: " if place else ""


def _check_known(kind: Any) -> None:
    """Check that msgspec can decode a type. Raises ClientError when a part of it is unknown to it."""
    try:
        unknown = next(_unknown(msgspec.inspect.type_info(kind), set()), None)
    except TypeError as error:
        raise ClientError(f"{kind!r} cannot be decoded: {error}") from error
    if unknown is not None:
        raise ClientError(
            f"{unknown!r} is a type that msgspec does not know; use codecs.pydantic for pydantic's types, or"
            " a codec of your own"
        )


def _unknown(info: object, seen: set[int]) -> Iterator[Any]:
    """The types within a type that msgspec does not know."""
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, tuple):
        for each in info:
            yield from _unknown(each, seen)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in info.__struct_fields__:
            yield from _unknown(getattr(info, name), seen)


__all__ = ["Codec", "codec_of", "json", "json_schema", "msgpack", "protobuf", "pydantic"]
