"""Health checks and reflection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from rmqkit.plugin.role import Role
from rmqkit.testing.broker import running_broker
from rmqkit.testing.listening import until
from rmqkit_grpc.framing import GrpcStatus
from rmqkit_grpc.inspection import HEALTH, REFLECTIONS
from tests.plugins.grpc.client import Client, connected

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVICE = "apache.rocketmq.v2.MessagingService"


async def health(client: Client, service: str = "") -> int:
    request = HEALTH.messages["HealthCheckRequest"](service=service)
    reply = await client.until_ended(await client.begin(CHECK, request))
    assert reply.status == 0
    status: int = HEALTH.messages["HealthCheckResponse"].FromString(reply.data[0]).status
    return status


async def test_health(tmp_path: Path) -> None:
    """Load balancers ask without the id of a client; a broker that is fenced does not serve."""
    async with running_broker(tmp_path) as running, connected(running, "") as client:
        assert await health(client) == HEALTH.enums["ServingStatus"]["SERVING"]
        assert await health(client, SERVICE) == HEALTH.enums["ServingStatus"]["SERVING"]
        request = HEALTH.messages["HealthCheckRequest"](service="other")
        assert (await client.until_ended(await client.begin(CHECK, request))).status == GrpcStatus.NOT_FOUND
        await running.context.role.set(Role.FENCED, 1)
        assert await health(client) == HEALTH.enums["ServingStatus"]["NOT_SERVING"]


async def test_health_is_watched(tmp_path: Path) -> None:
    """The status now and each other one later; a call that its client gives up is forgotten, and so is one
    of a connection that ends."""
    statuses, response = HEALTH.enums["ServingStatus"], HEALTH.messages["HealthCheckResponse"]
    async with running_broker(tmp_path) as running:
        listeners = running.context.role.on_change
        alone = len(listeners)
        async with connected(running, "") as client:

            async def watched(service: str = "") -> int:
                request = HEALTH.messages["HealthCheckRequest"](service=service)
                stream = await client.begin(WATCH, request)
                await client.until_messages(stream, 1)
                return stream

            async def seen(stream: int, count: int) -> list[int]:
                found = await client.until_messages(stream, count)
                return [response.FromString(each).status for each in found]

            first, unknown = await watched(), await watched("other")
            second = await watched(SERVICE)
            await running.context.role.set(Role.FENCED, 1)
            assert await seen(first, 2) == [statuses["SERVING"], statuses["NOT_SERVING"]]
            assert await seen(unknown, 1) == [statuses["SERVICE_UNKNOWN"]]
            client.h2.reset_stream(second, 8)
            await client.flush()
            await until(lambda: len(listeners) == alone + 1)
            await running.context.role.set(Role.MASTER, 2)
            assert (await seen(first, 3))[2:] == [statuses["SERVING"]]
        await until(lambda: len(listeners) == alone)


@pytest.mark.parametrize("package", REFLECTIONS)
async def test_reflection(tmp_path: Path, package: str) -> None:
    """A tool learns the services, and from a symbol all files that it needs."""
    messages = REFLECTIONS[package].messages
    async with running_broker(tmp_path) as running, connected(running, "") as client:
        path = f"/{package}.ServerReflection/ServerReflectionInfo"
        stream = await client.begin(path, messages["ServerReflectionRequest"](list_services="*"), end=False)

        async def asked(**question: Any) -> Any:
            data = messages["ServerReflectionRequest"](**question).SerializeToString()
            count = len(client.replies[stream].data)
            await client.send_data(stream, b"\0" + len(data).to_bytes(4) + data)
            return messages["ServerReflectionResponse"].FromString(
                (await client.until_messages(stream, count + 1))[-1]
            )

        (data,) = await client.until_messages(stream, 1)
        listed = messages["ServerReflectionResponse"].FromString(data).list_services_response.service
        assert {each.name for each in listed} == {
            SERVICE,
            "apache.rocketmq.v2.Admin",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        wanted, files = [(await asked(file_containing_symbol=SERVICE)).file_descriptor_response], {}
        while wanted:
            for text in wanted.pop().file_descriptor_proto:
                proto = descriptor_pb2.FileDescriptorProto.FromString(text)
                files[proto.name] = proto
                for name in proto.dependency:
                    if name not in files:
                        wanted.append((await asked(file_by_filename=name)).file_descriptor_response)
        assert len(files) == 3
        unknown = await asked(file_containing_symbol="nothing")
        assert unknown.error_response.error_code == GrpcStatus.NOT_FOUND
        none = await asked(all_extension_numbers_of_type=SERVICE)
        assert none.error_response.error_code == GrpcStatus.NOT_FOUND
        client.h2.end_stream(stream)
        await client.flush()
        assert (await client.until_ended(stream)).status == 0
