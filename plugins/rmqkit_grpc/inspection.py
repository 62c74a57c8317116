"""What tools ask of any gRPC server: whether it serves (grpc.health.v1), and which services it has (server
reflection, as grpcurl asks for it)."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2

from rmqkit_grpc.backend import Backend
from rmqkit_grpc.framing import GrpcError, GrpcStatus
from rmqkit_grpc.messages import PACKAGE, POOL, V2
from rmqkit_grpc.schema import File
from rmqkit_grpc.session import Exchange, Steps

HEALTH_PACKAGE = "grpc.health.v1"
REFLECTION_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_HEALTH_MESSAGES = r"""
HealthCheckRequest | service 1 s
HealthCheckResponse | status 1 ServingStatus
"""
_HEALTH_ENUMS = "ServingStatus | UNKNOWN 0 | SERVING 1 | NOT_SERVING 2 | SERVICE_UNKNOWN 3"
_HEALTH_SERVICE = (
    "Health | Check HealthCheckRequest HealthCheckResponse | Watch HealthCheckRequest HealthCheckResponse*"
)

_REFLECTION_MESSAGES = r"""
ExtensionRequest | containing_type 1 s | extension_number 2 i
ServerReflectionRequest | host 1 s | file_by_filename 3 s /message_request \
    | file_containing_symbol 4 s /message_request \
    | file_containing_extension 5 ExtensionRequest /message_request \
    | all_extension_numbers_of_type 6 s /message_request | list_services 7 s /message_request
FileDescriptorResponse | file_descriptor_proto 1 b*
ExtensionNumberResponse | base_type_name 1 s | extension_number 2 i*
ServiceResponse | name 1 s
ListServiceResponse | service 1 ServiceResponse*
ErrorResponse | error_code 1 i | error_message 2 s
ServerReflectionResponse | valid_host 1 s | original_request 2 ServerReflectionRequest \
    | file_descriptor_response 4 FileDescriptorResponse /message_response \
    | all_extension_numbers_response 5 ExtensionNumberResponse /message_response \
    | list_services_response 6 ListServiceResponse /message_response \
    | error_response 7 ErrorResponse /message_response
"""
_REFLECTION_SERVICE = (
    "ServerReflection | ServerReflectionInfo ServerReflectionRequest* ServerReflectionResponse*"
)

HEALTH = File(POOL, "rmqkit/health.proto", HEALTH_PACKAGE, _HEALTH_MESSAGES, _HEALTH_ENUMS, _HEALTH_SERVICE)
REFLECTIONS = {
    package: File(POOL, f"rmqkit/{package}.proto", package, _REFLECTION_MESSAGES, "", _REFLECTION_SERVICE)
    for package in REFLECTION_PACKAGES
}
_FILES = (V2, HEALTH, *REFLECTIONS.values())
_SERVICES = (
    f"{PACKAGE}.MessagingService",
    f"{PACKAGE}.Admin",
    f"{HEALTH_PACKAGE}.Health",
    *(f"{package}.ServerReflection" for package in REFLECTION_PACKAGES),
)
_KNOWN: dict[str, bytes] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in (timestamp_pb2, duration_pb2)
}
_BY_NAME = _KNOWN | {file.name: file.text for file in _FILES}
_STATUSES = HEALTH.enums["ServingStatus"]


def check_health(exchange: Exchange, asked: Any) -> Steps:
    """Health.Check: the whole server, or one of its services."""
    if asked.service and asked.service not in _SERVICES:
        raise GrpcError(GrpcStatus.NOT_FOUND, f"there is no service {asked.service}")
    return _health(exchange.backend)
    yield  # It asks nothing of the broker.


def watch_health(exchange: Exchange, asked: Any) -> Steps:
    """Health.Watch: the same now, and after each change. It waits for a service that the server lacks, as the
    protocol has it."""
    if asked.service and asked.service not in _SERVICES:
        return HEALTH.messages["HealthCheckResponse"](status=_STATUSES["SERVICE_UNKNOWN"])
    backend = exchange.backend
    told = _health(backend)

    def look() -> None:
        nonlocal told
        now = _health(backend)
        if now != told:
            told = now
            exchange.session.wire.tell(exchange.stream, now)

    backend.on_change.append(look)
    exchange.on_end = partial(backend.on_change.remove, look)
    return told
    yield  # It asks nothing of the broker.


def _health(backend: Backend) -> Any:
    status = "SERVING" if backend.serves else "NOT_SERVING"
    return HEALTH.messages["HealthCheckResponse"](status=_STATUSES[status])


def reflect(exchange: Exchange, asked: Any) -> Steps:
    """ServerReflectionInfo: one question."""
    package = type(asked).DESCRIPTOR.file.package
    response = REFLECTIONS[package].messages["ServerReflectionResponse"](
        valid_host=asked.host, original_request=asked
    )
    kind = asked.WhichOneof("message_request")
    if kind == "list_services":
        for name in _SERVICES:
            response.list_services_response.service.add(name=name)
        return response
    found = None
    if kind == "file_by_filename":
        found = _BY_NAME.get(asked.file_by_filename)
    elif kind == "file_containing_symbol":
        found = _containing(asked.file_containing_symbol)
    if found is None:
        response.error_response.error_code = int(GrpcStatus.NOT_FOUND)
        response.error_response.error_message = "there is no such file, symbol or extension"
    else:
        response.file_descriptor_response.file_descriptor_proto.append(found)
    return response
    yield  # It asks nothing of the broker.


def _containing(symbol: str) -> bytes | None:
    """The file with a message, enum, service or method."""
    try:
        name: str = POOL.FindFileContainingSymbol(symbol).name
    except KeyError:
        return None
    return _BY_NAME[name]


__all__ = [
    "HEALTH",
    "HEALTH_PACKAGE",
    "REFLECTIONS",
    "REFLECTION_PACKAGES",
    "check_health",
    "reflect",
    "watch_health",
]
