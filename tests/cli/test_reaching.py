"""Connections of verbs to a cluster: TLS, the listeners of one broker, settings from options, files and the
environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client.blocking import BlockingClient
from rmqkit.config import load
from tests.cli.conftest import Ready, Run, Start
from tests.ports import free_port
from tests.transports.tls import certs


def settings_as_words(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture
def listeners(tmp_path: Path) -> dict[str, str]:
    port = free_port()
    return {
        "unix": f"unix://{tmp_path}/b.sock",
        "tls": f"tls://127.0.0.1:{port}",
        "quic": f"quic://127.0.0.1:{port}",
    }


@pytest.fixture
def server(start: Start, tmp_path: Path, listeners: dict[str, str]) -> Ready:
    """A name server and a broker that accept only TLS on their ports, with further listeners."""
    words = settings_as_words(
        certs.write(tmp_path) | certs.trust(tmp_path) | {"tls.server.mode": "enforcing", "tls.enable": "true"}
    )
    words += settings_as_words({"store": "memory", "listeners": ",".join(listeners.values())})
    return start("serve", "--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", *words)


def test_a_cluster_behind_tls(rmqkit: Run, server: Ready, tmp_path: Path) -> None:
    """Name server, routes and brokers are reached by options, a settings file or the environment; without
    them the error names the address."""
    ca = certs.trust(tmp_path)["tls.client.trustCertPath"]
    here = ("--namesrv", server.where["namesrv"])
    sent = rmqkit("send", "Orders", "one", *here, "--tls", "--ca", ca)
    assert sent.returncode == 0, sent.stderr
    (tmp_path / "client.toml").write_text(
        f'namesrvAddr = "{here[1]}"\n[tls]\nenable = true\n[tls.client]\ntrustCertPath = "{ca}"\n'
    )
    sent = rmqkit("send", "Orders", "two", "--config", "client.toml")
    assert sent.returncode == 0, sent.stderr
    environment = {
        "RMQKIT_TLS_ENABLE": "true",
        "RMQKIT_TLS_CLIENT_TRUST_CERT_PATH": ca,
        "NAMESRV_ADDR": here[1],
    }
    consumed = rmqkit("consume", "Orders", env=environment)
    assert consumed.returncode == 0, consumed.stderr
    assert sorted(line.split()[-1] for line in consumed.stdout.splitlines()) == ["one", "two"]
    listed = rmqkit("topic", "list", *here, "--transport", "tls", "--set", f"tls.client.trustCertPath={ca}")
    assert "Orders" in listed.stdout.split(), listed.stderr
    assert rmqkit("status", *here, "--tls", "--ca", ca, "--json").returncode == 0

    refused = rmqkit("send", "Orders", "three", *here)
    assert refused.returncode == 1
    assert here[1] in refused.stderr
    untrusted = rmqkit("send", "Orders", "three", *here, "--tls")
    assert untrusted.returncode == 1
    assert "certificate" in untrusted.stderr


@pytest.mark.parametrize("scheme", ["unix", "tls", "quic"])
def test_a_listener_of_one_broker(
    rmqkit: Run, server: Ready, listeners: dict[str, str], tmp_path: Path, scheme: str
) -> None:
    """The address of a listener is accepted in place of a name server, for sends and for consumption."""
    ca = certs.trust(tmp_path)["tls.client.trustCertPath"]
    where = ("--namesrv", listeners[scheme], "--ca", ca)
    sent = rmqkit("send", "Orders", "hello", *where)
    assert sent.returncode == 0, sent.stderr
    consumed = rmqkit("consume", "Orders", *where)
    assert consumed.stdout.endswith(" hello\n"), consumed.stderr


def test_the_blocking_client_takes_the_same(server: Ready, listeners: dict[str, str], tmp_path: Path) -> None:
    """The blocking client accepts a default transport with trust settings, or the address of a listener."""
    config = load(environ={}, flags=certs.trust(tmp_path))
    for where, transport in (
        (server.where["namesrv"], "tls"),
        (listeners["unix"], ""),
        (listeners["quic"], ""),
    ):
        with (
            BlockingClient(where, config=config, transport=transport) as client,
            client.producer("p") as producer,
        ):
            client.admin.create_topic("Orders")
            assert producer.send("Orders", b"hello").queue_offset >= 0
        with (
            BlockingClient(where, config=config, transport=transport) as client,
            client.pull_consumer("g") as consumer,
        ):
            assert sum(consumer.max_offset(queue) for queue in consumer.queues("Orders")) >= 1


def test_a_missing_extra_is_a_fault_of_the_settings(rmqkit: Run, server: Ready, tmp_path: Path) -> None:
    """Client and server exit with 2 and name the extra; the client does not report an unreachable name
    server."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\nimportlib.util.find_spec = lambda name,"
        " package=None: None if name == 'aioquic' else find(name, package)\n"
    )
    without = {"PYTHONPATH": str(tmp_path)}
    for words in (
        ("send", "Orders", "x", "--namesrv", "quic://127.0.0.1:1"),
        ("consume", "Orders", "--transport", "quic"),
        ("topic", "list", "--namesrv", "quic://127.0.0.1:1"),
        ("serve", "--data", "other", "--broker", "127.0.0.1:0", "--set", "namesrvListen=quic://127.0.0.1:0"),
        ("broker", "--data", "other", "--broker", "127.0.0.1:0", "--set", "listeners=quic://127.0.0.1:0"),
    ):
        result = rmqkit(*words, env=without)
        assert (result.returncode, "pip install '.[quic]'" in result.stderr) == (2, True), (
            words,
            result.stderr,
        )
        assert "name server answers" not in result.stderr


def test_options_that_are_wrong(rmqkit: Run, tmp_path: Path) -> None:
    """An unknown transport, a missing file and two transports at a time each cause one error line."""
    unknown = rmqkit("send", "Orders", "x", "--transport", "pigeon")
    assert unknown.returncode != 0
    assert "pigeon" in unknown.stderr
    missing = rmqkit("send", "Orders", "x", "--tls", "--ca", "none.pem")
    assert missing.returncode != 0
    assert "none.pem" in missing.stderr
    both = rmqkit("send", "Orders", "x", "--tls", "--transport", "quic")
    assert both.returncode == 2
    for result in (unknown, missing, both):
        assert "Traceback" not in result.stderr
