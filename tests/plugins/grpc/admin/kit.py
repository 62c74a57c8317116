"""Calls of the Admin service."""

from __future__ import annotations

from typing import Any

from rmqkit_grpc.messages import PACKAGE
from tests.plugins.grpc.client import CODES, Client, M


async def administer(client: Client, name: str, **fields: Any) -> Any:
    """The answer to a call, whatever its status."""
    own = "ListMessage" if name == "QueryMessage" else name
    request = M[f"{own}Request"](**fields)
    stream = await client.begin(f"/{PACKAGE}.Admin/{name}", request)
    reply = await client.until_ended(stream)
    assert reply.status == 0, reply.text
    (data,) = reply.data
    return M[f"{own}Response"].FromString(data)


async def administered(client: Client, name: str, **fields: Any) -> Any:
    """The answer to a call that succeeds."""
    answer = await administer(client, name, **fields)
    assert answer.status.code == CODES["OK"], answer.status.message
    return answer
