"""TLS between Apache's Java clients and rmqkit's server, and between rmqkit's client and Apache's server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqkit.client import Client, PullStatus
from rmqkit.config import load
from rmqkit.errors import NameServersUnreachable
from tests.interop import peers
from tests.interop.builds import JAVA_CLIENT_VERSIONS, JAVA_ENDS, BuildError, java_client
from tests.transports.tls import certs

#: Both directions, answers of many messages, large bodies, held pulls, notifications of the broker, one-way
#: requests.
SCENARIOS = {
    "sync": {"sent": 20, "received": 20},
    "batch": {"received": 25},
    "large": {"received": 3},
    "long-polling": {},
    "oneway": {"received": 21},
    "rebalance": {"lost": 0, "queues": 4},
}
#: Java's default for these settings is not to check certificates.
_CHECKING = {"tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true"}


def serve(stack: ExitStack, home: Path, settings: Mapping[str, str]) -> peers.Server:
    home.mkdir()
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    try:
        return stack.enter_context(peers.rmqkit_serve(home, arguments=arguments))
    except peers.PeerError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of servers and clients."""
    path = tmp_path_factory.mktemp("tls")
    for side in ("server", "client"):
        certs.write(path, side)
        certs.trust(path, side)
    certs.write(path, "stranger", trusted=False)
    return path


@pytest.fixture(scope="module")
def enforcing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """A server that accepts only TLS and requires client certificates."""
    settings = certs.both(folder) | certs.write(folder, "client") | certs.trust(folder, "server")
    settings |= {
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.enable": "true",
    }
    with ExitStack() as stack:
        yield serve(stack, tmp_path_factory.mktemp("enforcing") / "home", settings)


@pytest.fixture(scope="module")
def permissive(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """A server with a certificate and no other TLS settings."""
    with ExitStack() as stack:
        yield serve(stack, tmp_path_factory.mktemp("permissive") / "home", certs.write(folder))


def play(
    version: str, home: Path, server: peers.Server, settings: Mapping[str, str], *scenarios: str
) -> peers.Report:
    try:
        client = java_client(version)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
    absent = {"tls.config.file": str(home / "absent.properties")}
    return peers.play(
        peers.java_command(client, home, settings={**absent, **settings}), scenarios, server.namesrv, home
    )


def check(report: peers.Report, server: peers.Server) -> None:
    for scenario, expected in SCENARIOS.items():
        outcome = report.outcome(scenario)
        assert outcome.ok, f"{report.explain(scenario)}\n{server.tail()}"
        assert {name: outcome.facts.get(name) for name in expected} == expected


@pytest.mark.parametrize("version", JAVA_ENDS)
def test_both_sides_show_certificates(
    version: str, tmp_path: Path, folder: Path, enforcing: peers.Server
) -> None:
    """Client and server check each other's certificate, on connections to the name server and to the
    broker."""
    check(
        play(
            version,
            tmp_path,
            enforcing,
            _CHECKING | certs.trust(folder) | certs.write(folder, "client"),
            *SCENARIOS,
        ),
        enforcing,
    )


@pytest.mark.parametrize("version", JAVA_ENDS)
def test_a_client_as_it_comes(version: str, tmp_path: Path, permissive: peers.Server) -> None:
    """A client with only useTLS connects, because its test mode accepts any certificate."""
    check(play(version, tmp_path, permissive, {"tls.enable": "true"}, *SCENARIOS), permissive)


def test_a_plain_client_beside_them(tmp_path: Path, permissive: peers.Server) -> None:
    """A server with a certificate still accepts plain connections."""
    report = play(JAVA_CLIENT_VERSIONS[0], tmp_path, permissive, {}, "sync")
    assert report.outcome("sync").ok, report.explain("sync")


@pytest.mark.parametrize("case", ["plain", "no certificate", "a stranger's certificate"])
def test_clients_that_are_not_let_in(
    case: str, tmp_path: Path, folder: Path, enforcing: peers.Server
) -> None:
    """Such clients send no message, and the server's log contains the reason."""
    stranger = {
        "tls.client.certPath": str(folder / "stranger.pem"),
        "tls.client.keyPath": str(folder / "stranger.key"),
    }
    settings = {
        "plain": {},
        "no certificate": _CHECKING | certs.trust(folder),
        "a stranger's certificate": _CHECKING | certs.trust(folder) | stranger,
    }
    said = {
        "plain": "this port takes only TLS",
        "no certificate": "peer did not return a certificate",
        "a stranger's certificate": "certificate not accepted: unable to get local issuer certificate",
    }
    report = play(JAVA_CLIENT_VERSIONS[0], tmp_path, enforcing, settings[case], "oneway")
    assert not report.outcome("oneway").ok
    assert said[case] in enforcing.programs[0].log.read_text()


def test_a_server_that_the_client_does_not_trust(
    tmp_path: Path, folder: Path, permissive: peers.Server
) -> None:
    """With another authority the client sends nothing."""
    path = tmp_path / "other.pem"
    certs.other_authority().cert_pem.write_to_path(path)
    report = play(
        JAVA_CLIENT_VERSIONS[0],
        tmp_path,
        permissive,
        _CHECKING | {"tls.client.trustCertPath": str(path)},
        "oneway",
    )
    assert not report.outcome("oneway").ok


async def test_our_client_and_apaches_server(apache_cluster: peers.Server) -> None:
    """Apache's servers are permissive with a self-signed certificate: accepted in test mode, otherwise
    refused with the reason."""
    async with Client(
        apache_cluster.namesrv,
        config=load(environ={}, flags={"tls.enable": True, "tls.test.mode.enable": True}),
    ) as client:
        await client.admin.create_topic("py_tls", queues=1)
        async with client.producer("py_tls") as producer, client.pull_consumer("py_tls") as consumer:
            for _ in range(5):
                sent = await producer.send("py_tls", bytes(300_000))
            result = await consumer.pull(sent.queue, 0)
            assert (result.status, len(result.messages[0].body)) == (PullStatus.FOUND, 300_000)
    async with Client(apache_cluster.namesrv, config=load(environ={}, flags={"tls.enable": True})) as client:
        with pytest.raises(NameServersUnreachable, match=r"is not accepted: .*tls\.client\.trustCertPath"):
            await client.admin.topics()
