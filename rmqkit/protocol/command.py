"""One remoting command: the header of a frame with its body (Java: RemotingCommand; wire-protocol sheet,
sections 1.1 to 1.5)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from rmqkit.errors import DecodeError, HeaderError
from rmqkit.limits import MAX_LOOSE_JSON_BYTES
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, LANGUAGES, VERSION

H = TypeVar("H", bound=msgspec.Struct)

_NO_EXT = msgspec.Raw(b"")
_NULL = b"null"


class Command(msgspec.Struct, gc=False):
    """A request or a response.

    code       request or response code
    opaque     request id, signed 32 bits, echoed by the answer
    flag       bit 0 response, bit 1 one-way
    language   name of the sender's language, None when it is unknown
    ext        header fields as text; None if the frame had none; read them with `fields()`
    body       raw bytes, empty where Java says null
    codec      SerializeType of the frame; an answer copies it
    typed      the header fields of a request that this end makes, and of the most frequent ones that it
               receives, decoded together with the rest; read them with `header()`
    """

    code: int = 0
    flag: int = 0
    opaque: int = 0
    language: str | None = "PYTHON"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    codec: int = 0
    #: Source of `fields()`: the fields alone, or for a received command with `typed` the header that contains
    #: them. A request that this end makes has `typed` alone.
    ext_json: msgspec.Raw = _NO_EXT
    head_json: bytes = b""
    typed: msgspec.Struct | None = None

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def fields(self) -> dict[str, str]:
        """The header fields as text, in the order sent; the dictionary belongs to the command. Raises
        HeaderError if they are not flat."""
        if self.ext is None:
            raw = bytes(self.ext_json)
            try:
                plain = self._plain_fields(raw)
                if plain is not None:
                    self.ext = plain
                elif self.head_json:
                    self.ext = _flat(loose_json.loads(self.head_json)["extFields"])
                elif self.typed is not None:
                    self.ext = header_fields(self.typed)
                else:
                    self.ext = _flat(loose_json.loads(raw)) if raw and raw != _NULL else {}
            except DecodeError as error:
                raise HeaderError(f"extFields: {error}") from error
        return self.ext

    def _plain_fields(self, raw: bytes) -> dict[str, str] | None:
        """The fields of a received command whose values are all texts, as clients write them; None for
        others."""
        try:
            if self.head_json:
                return _decode_fields_head(self.head_json).extFields
            return _decode_fields(raw) if raw else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def header(self, kind: type[H]) -> H:
        """The header fields as a typed header. Raises HeaderError with the name of a missing or wrong
        field."""
        if type(self.typed) is kind and (self.ext is None or self.head_json):
            return self.typed
        raw = self.ext_json
        if self.ext is None and raw:
            decoder: msgspec.json.Decoder[H] = _decoders.get(kind) or _new_decoder(kind)
            try:
                return decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
        try:
            return msgspec.convert(self.fields(), kind, strict=False)
        except msgspec.ValidationError as error:
            raise HeaderError(f"header of request {self.code}: {error}") from error

    def decode_body(self, kind: type[H]) -> H:
        """The body as a typed structure. Raises DecodeError."""
        return loose_json.decode(self.body, kind, max_loose_bytes=MAX_LOOSE_JSON_BYTES)


class _FieldsHead(msgspec.Struct, gc=False):
    """A header of which the fields alone are read."""

    extFields: dict[str, str]


_decode_fields_head = msgspec.json.Decoder(_FieldsHead).decode
_decode_fields = msgspec.json.Decoder(dict[str, str]).decode
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _new_decoder(kind: type[H]) -> msgspec.json.Decoder[H]:
    decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=False)
    return decoder


def _flat(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HeaderError("extFields is not an object")
    return {key: _text(key, item) for key, item in value.items() if item is not None}


def _text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise HeaderError(f"header field {key!r} is not a scalar")


def language_name(value: object) -> str | None:
    """A language given by name or by ordinal; None when unknown, as in Java."""
    if isinstance(value, str):
        return value if value in LANGUAGES else None
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return None


def request(
    code: int,
    header: msgspec.Struct | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    version: int = VERSION,
) -> Command:
    """A request with the fields of a typed header, which must not change until the request is sent."""
    return Command(
        code=int(code),
        flag=FLAG_ONEWAY if oneway else 0,
        opaque=opaque,
        body=body,
        version=version,
        typed=header,
    )


def answer(
    to: Command,
    code: int = 0,
    remark: str | None = None,
    *,
    header: msgspec.Struct | None = None,
    body: bytes = b"",
) -> Command:
    """A response to `to`, in its serialisation."""
    ext = header_fields(header) if header is not None else None
    return Command(
        code=int(code),
        flag=FLAG_RESPONSE,
        opaque=to.opaque,
        remark=remark,
        ext=ext,
        body=body,
        codec=to.codec,
    )


def json_answer(to: Command, value: object, *, raw_keys: bool = False) -> Command:
    """A success whose body is JSON; `raw_keys` as in `loose_json.dumps`."""
    return answer(to, body=loose_json.dumps(value, raw_keys=raw_keys))


def header_fields(header: msgspec.Struct) -> dict[str, str]:
    """Header struct -> text fields under their wire names; None is left out (Java: makeCustomHeaderToNet)."""
    fields: dict[str, str] = {}
    for name, value in zip(header.__struct_encode_fields__, astuple(header), strict=True):
        if type(value) is int:
            fields[name] = str(value)
        elif value is not None:
            fields[name] = (
                value
                if type(value) is str
                else ("true" if value is True else "false" if value is False else str(value))
            )
    return fields


__all__ = ["Command", "DecodeError", "answer", "header_fields", "language_name", "request"]
