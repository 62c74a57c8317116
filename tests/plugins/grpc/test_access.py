"""Clients of gRPC at a broker with access control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.client import Client
from rmqkit.plugin.access import PRINCIPAL
from rmqkit.protocol.signature import Secret
from rmqkit.testing.broker import running_broker, running_cluster
from tests.hooks.acl.kit import CHECKED, ROOT
from tests.hooks.acl.test_tokens import ISSUER, key_set, token
from tests.plugins.grpc.client import CODES, M, connected, message, resource, sending
from tests.plugins.grpc.test_proxy import dialled, proxy_of

DATE = "20261126T030000Z"
ROUTE = M["QueryRouteRequest"](topic=resource("T"))


def proof(user: str = ROOT[0], secret: str = ROOT[1], date: str = DATE, signed: str = DATE) -> dict[str, Any]:
    """The metadata of a client with credentials."""
    signature = Secret(secret).digest(signed.encode()).hex().upper()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x_mq_date_time": date}


async def test_signatures_are_checked(tmp_path: Path) -> None:
    """Each call by itself: one that is signed does not admit others of its connection."""
    async with running_broker(tmp_path, **CHECKED) as running, connected(running) as client:
        assert (await client.call("QueryRoute", ROUTE, **proof())).status.code == CODES["OK"]
        sent = await client.call("SendMessage", sending(message("T")), **proof())
        assert sent.status.code == CODES["OK"], sent
        refused = await client.call("SendMessage", sending(message("T")))
        assert refused.status.code == CODES["FORBIDDEN"]
        peers = [*running.context.clients.producers.get("T", {})]
        assert all(PRINCIPAL not in peer.attributes for peer in peers)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        proof(secret="wrong"),
        proof(user="nobody"),
        proof(date=DATE.replace("2026", "2027")),
        proof(date="", signed=""),
        {"authorization": "MQv2-HMAC-SHA1 Credential=root", "x_mq_date_time": DATE},
        {"authorization": "MQv2-HMAC-SHA1 Credential=, Signature=" + "0" * 40, "x_mq_date_time": DATE},
        {"authorization": "Basic cm9vdA=="},
        {"AccessKey": "root", "Signature": "x"},
    ],
)
async def test_calls_without_a_valid_signature(tmp_path: Path, metadata: dict[str, Any]) -> None:
    """They are refused, with a reason."""
    async with running_broker(tmp_path, **CHECKED) as running, connected(running) as client:
        answer = await client.call("QueryRoute", ROUTE, **metadata)
        assert answer.status.code == CODES["FORBIDDEN"]
        assert answer.status.message
        assert running.context.topics.get("T") is None


async def test_empty_credentials_without_access_control(tmp_path: Path) -> None:
    """Some clients sign with an empty key when they have none."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        metadata = {"authorization": "MQv2-HMAC-SHA1 Credential=, Signature=", "x_mq_date_time": DATE}
        assert (await client.call("QueryRoute", ROUTE, **metadata)).status.code == CODES["OK"]


@pytest.mark.parametrize(
    ("rights", "is_trusted"), [(ROOT, True), (("alice", "alice-secret"), False), (None, False)]
)
async def test_a_proxy_lends_its_rights_to_nobody(
    tmp_path: Path, rights: tuple[str, str] | None, is_trusted: bool
) -> None:
    """It vouches for what it passes on, which gets a client as far as at a broker, and one without a proof
    nowhere; a proxy that is not a super user cannot."""
    async with running_cluster(tmp_path, scheme="tcp", **CHECKED) as cluster:
        async with Client(cluster.namesrv_text, access_key=ROOT[0], secret_key=ROOT[1]) as admin:
            await admin.access.set_user("alice", password="alice-secret")
        key = {} if rights is None else {"accessKey": rights[0], "secretKey": rights[1]}
        async with proxy_of(cluster.namesrv_text, **key) as address, dialled(address) as client:
            await client.call("QueryRoute", ROUTE)
            for metadata in ({}, proof(secret="wrong"), proof("alice", "alice-secret")):
                refused = await client.call("SendMessage", sending(message("T")), **metadata)
                assert refused.status.code != CODES["OK"], refused
            store = cluster.broker.context.store
            assert not [each for each in range(4) if store.max_offset("T", each)]
            sent = await client.call("SendMessage", sending(message("T")), **proof())
            assert (sent.status.code == CODES["OK"]) == is_trusted, sent


async def test_a_token_passes_a_proxy(tmp_path: Path) -> None:
    """It says who the client is, wherever it comes from."""
    (tmp_path / "keys.json").write_bytes(key_set("k1"))
    keys = {
        **CHECKED,
        "plugins.acl.tokens": ["jwt"],
        "plugins.acl.jwtIssuer": ISSUER,
        "plugins.acl.jwtAudience": "rocketmq",
        "plugins.acl.jwtKeys": str(tmp_path / "keys.json"),
    }
    async with running_cluster(tmp_path / "data", scheme="tcp", **keys) as cluster:
        rights = {"accessKey": ROOT[0], "secretKey": ROOT[1]}
        async with proxy_of(cluster.namesrv_text, **rights) as address, dialled(address) as client:
            shown = {"x_mq_session_token": token(sub=ROOT[0])}
            await client.call("QueryRoute", ROUTE, **shown)
            sent = await client.call("SendMessage", sending(message("T")), **shown)
            assert sent.status.code == CODES["OK"], sent
