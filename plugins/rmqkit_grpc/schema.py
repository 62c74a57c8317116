"""Builds protobuf classes from a table, in a descriptor pool of its own.

The default pool of protobuf belongs to the whole process, and a program that uses RocketMQ's own Python
client has these messages there already. A line of the table is one message: its name, and fields of the
form `name number type`. A type is a letter, the name of a message or an enum of the table, `map` from
text to text, or `map:NAME` to a message; `?` marks a field whose presence matters, `*` a repeated one, and
`/name` the group of fields of which one is set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "s": _Field.TYPE_STRING,
    "b": _Field.TYPE_BYTES,
    "i": _Field.TYPE_INT32,
    "l": _Field.TYPE_INT64,
    "f": _Field.TYPE_FLOAT,
    "d": _Field.TYPE_DOUBLE,
    "B": _Field.TYPE_BOOL,
}
_KNOWN = {"T": ".google.protobuf.Timestamp", "D": ".google.protobuf.Duration"}


def private_pool() -> descriptor_pool.DescriptorPool:
    """A pool with the messages of protobuf that the table's letters name."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


class File:
    """One file of definitions: `messages` are classes by name, `enums` numbers by the name of their value,
    `text` is its serialised descriptor."""

    def __init__(
        self,
        pool: descriptor_pool.DescriptorPool,
        name: str,
        package: str,
        messages: str,
        enums: str = "",
        services: str = "",
    ) -> None:
        self.name, self.package = name, package
        enum_lines, lines = _lines(enums), _lines(messages)
        kinds = {line[0]: _Field.TYPE_ENUM for line in enum_lines}
        kinds |= {line[0]: _Field.TYPE_MESSAGE for line in lines}
        proto = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
        proto.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
        for title, *values in enum_lines:
            enum = proto.enum_type.add(name=title)
            for each in values:
                value, number = each.split()
                enum.value.add(name=value, number=int(number))
        for title, *fields in lines:
            _add_message(proto.message_type.add(name=title), title, fields, package, kinds)
        for title, *calls in _lines(services):
            _add_service(proto.service.add(name=title), calls, package)
        self.text: bytes = proto.SerializeToString()
        pool.AddSerializedFile(self.text)
        self.messages: dict[str, Any] = {
            line[0]: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{line[0]}"))
            for line in lines
        }
        self.enums: dict[str, dict[str, int]] = {
            enum.name: {value.name: value.number for value in enum.value} for enum in proto.enum_type
        }


def _lines(table: str) -> list[list[str]]:
    """Lines that end with a backslash go on in the next one."""
    joined = table.replace("\\\n", " ")
    return [
        [part.strip() for part in line.split("|") if part.strip()]
        for line in joined.splitlines()
        if line.strip()
    ]


def _add_message(
    message: descriptor_pb2.DescriptorProto,
    title: str,
    fields: Iterable[str],
    package: str,
    kinds: dict[str, Any],
) -> None:
    groups: dict[str, int] = {}
    optional = []
    for text in fields:
        name, number, kind, *group = text.split()
        field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind.endswith("*"):
            field.label = _Field.LABEL_REPEATED
        elif kind.endswith("?"):
            field.proto3_optional = True
            optional.append(field)
        kind = kind.rstrip("*?")
        if kind.startswith("map"):
            _make_map(message, field, title, package, kind.partition(":")[2])
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = kinds.get(kind, _Field.TYPE_MESSAGE)
            field.type_name = _KNOWN.get(kind) or f".{package}.{kind}"
        for each in group:
            if each not in groups:
                groups[each] = len(message.oneof_decl)
                message.oneof_decl.add(name=each[1:])
            field.oneof_index = groups[each]
    for field in optional:
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _make_map(
    message: descriptor_pb2.DescriptorProto,
    field: descriptor_pb2.FieldDescriptorProto,
    title: str,
    package: str,
    value: str,
) -> None:
    """Make a field a map from text to the message `value`, to text without one."""
    entry_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    if value:
        entry.field[1].type = _Field.TYPE_MESSAGE
        entry.field[1].type_name = f".{package}.{value}"
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{package}.{title}.{entry_name}"


def _add_service(service: descriptor_pb2.ServiceDescriptorProto, calls: Iterable[str], package: str) -> None:
    """A call is `name request answer`; a `*` marks a stream."""
    for text in calls:
        name, request, answer = text.split()
        service.method.add(
            name=name,
            input_type=f".{package}.{request.rstrip('*')}",
            output_type=f".{package}.{answer.rstrip('*')}",
            client_streaming=request.endswith("*"),
            server_streaming=answer.endswith("*"),
        )


__all__ = ["File", "private_pool"]
