"""`rmqkit serve`, `namesrv` and `broker`."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.conftest import Ready, Run, Start
from tests.programs import spawn
from tests.transports.tls import certs


def test_sigterm_stops_a_server_with_exit_code_zero(server: Ready) -> None:
    """SIGTERM stops a server gracefully."""
    assert server.stop() == 0


@pytest.mark.row("S055", "S074")
def test_the_data_folder_is_rocketmqs_layout_and_survives_a_restart(
    start: Start, rmqkit: Run, tmp_path: Path
) -> None:
    """--data is storePathRootDir: it contains commitlog/ and the other files, no abort file after a clean
    stop, and the messages after the next start."""
    words = (
        "serve",
        "--data",
        "data",
        "--namesrv",
        "127.0.0.1:0",
        "--broker",
        "127.0.0.1:0",
        "--set",
        "mappedFileSizeCommitLog=16777216",
    )
    first = start(*words)
    assert rmqkit("send", "Kept", "hello", "--namesrv", first.where["namesrv"]).returncode == 0
    assert (tmp_path / "data" / "abort").exists()
    assert first.stop() == 0
    data = tmp_path / "data"
    assert [path.name for path in (data / "commitlog").iterdir()] == ["00000000000000000000"]
    assert (data / "consumequeue" / "Kept").is_dir()
    assert (data / "config" / "topics.json").is_file()
    assert not (data / "abort").exists()
    second = start(*words)
    consumed = rmqkit("consume", "Kept", "--namesrv", second.where["namesrv"])
    assert "hello" in consumed.stdout
    assert second.stop() == 0


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
@pytest.mark.parametrize(("umask", "others"), [(None, 0o077), ("027", 0o027)])
def test_no_other_user_reads_the_messages(
    start: Start, rmqkit: Run, tmp_path: Path, store: str, umask: str | None, others: int
) -> None:
    """Whatever the umask of the shell is, directories and files of the store, its tables and its journals are
    the user's alone, unless fileUmask says otherwise."""
    before = os.umask(0o000)
    try:
        given = () if umask is None else ("--set", f"fileUmask={umask}")
        words = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", *given)
        ready = start("serve", *words, "--set", f"store={store}", "--set", "mappedFileSizeCommitLog=8388608")
    finally:
        os.umask(before)
    sent = rmqkit("send", "Private", "secret", "--key", "k", "--namesrv", ready.where["namesrv"])
    assert (sent.returncode, ready.stop()) == (0, 0)
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(made) > 5
    for path in made:
        mode = path.stat().st_mode & 0o777
        assert mode & others == 0, (path, oct(mode))
        assert umask is None or path.is_file() or mode & 0o050 == 0o050, (path, oct(mode))


@pytest.mark.row("S053")
def test_name_server_and_broker_run_apart(start: Start, rmqkit: Run) -> None:
    """`rmqkit namesrv` and `rmqkit broker` together do the same as `serve`; a stopping broker leaves the
    routes at once."""
    namesrv = start("namesrv", "--listen", "127.0.0.1:0")
    address = namesrv.where["namesrv"]
    broker = start(
        "broker", "--data", "data", "--namesrv", address, "--broker", "127.0.0.1:0", "--set", "store=memory"
    )
    assert rmqkit("send", "Apart", "x", "--namesrv", address).returncode == 0
    assert broker.stop() == 0
    after = rmqkit("topic", "route", "Apart", "--namesrv", address)
    assert after.returncode == 1
    assert "no route" in after.stderr
    assert namesrv.stop() == 0


def test_a_taken_port_is_named_with_the_next_step(server: Ready, rmqkit: Run) -> None:
    """The exit code is 2 with one error line."""
    result = rmqkit(
        "serve",
        "--data",
        "other",
        "--namesrv",
        "127.0.0.1:0",
        "--broker",
        server.where["broker"],
        "--set",
        "store=memory",
    )
    assert result.returncode == 2
    assert f"cannot listen on {server.where['broker']}" in result.stderr
    assert "choose another port" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_second_broker_on_one_folder_is_refused(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """The lock is taken before any other file is touched."""
    words = (
        "serve",
        "--data",
        "data",
        "--namesrv",
        "127.0.0.1:0",
        "--broker",
        "127.0.0.1:0",
        "--set",
        "mappedFileSizeCommitLog=16777216",
    )
    first = start(*words)
    second = rmqkit(*words)
    assert second.returncode == 1
    assert "data" in second.stderr
    assert "Traceback" not in second.stderr
    assert first.stop() == 0


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("serve", "--broker", "nowhere"), "HOST:PORT"),
        (("serve", "--set", "flushDiskType"), "KEY=VALUE"),
        (("serve", "--set", "flushDiskType=SNYC_FLUSH"), "did you mean 'SYNC_FLUSH'?"),
        (("serve", "--set", "aclEnable=true"), "aclEnable"),
        (("broker", "--set", "inSyncReplicas=2"), "only brokerRole = SYNC_MASTER"),
        (("namesrv", "--set", "enableControllerInNamesrv=true"), "docs/failover.md"),
        (("serve", "--broker", "0.0.0.0:0"), "set brokerIP1"),
        (("serve", "--set", "store=tape"), "no plugin brings 'tape'"),
        (("serve", "--config", "missing.toml"), "missing.toml"),
        (("serve", "--set", "disabledPlugins=nobody"), "nobody"),
    ],
)
def test_wrong_words_and_settings_exit_with_2_and_name_the_fault(
    rmqkit: Run, words: tuple[str, ...], shown: str
) -> None:
    """Nothing starts."""
    result = rmqkit(*words)
    assert result.returncode == 2
    assert shown in result.stderr
    assert "Traceback" not in result.stderr


def test_the_variable_of_clients_does_not_register_an_embedded_broker_elsewhere(
    start: Start, rmqkit: Run, tmp_path: Path
) -> None:
    """With NAMESRV_ADDR exported, the broker of a second `serve` does not register with the first one's name
    server; --set namesrvAddr makes it register."""
    words = ("--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")
    first = start("serve", "--data", "first", *words)
    there = first.where["namesrv"]
    second = start("serve", "--data", "second", *words, env={"NAMESRV_ADDR": there})
    route = rmqkit("topic", "route", "TBW102", "--namesrv", there).stdout
    assert first.where["broker"] in route
    assert second.where["broker"] not in route
    refused = rmqkit("serve", "--data", "third", *words, "--set", f"namesrvAddr={there}")
    assert refused.returncode == 2
    assert "brokerName" in refused.stderr
    refused = rmqkit(
        "broker",
        "--data",
        "third",
        "--broker",
        "127.0.0.1:0",
        "--set",
        "store=memory",
        env={"NAMESRV_ADDR": there},
    )
    assert refused.returncode == 2
    assert first.where["broker"] in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unknown_setting_warns_and_the_server_starts(start: Start, rmqkit: Run) -> None:
    """The warning suggests the correct name."""
    result = rmqkit("config", "--set", "flushdisktype=SYNC_FLUSH", "--set", "whatever=1")
    assert result.returncode == 0
    assert "did you mean 'flushDiskType'" in result.stderr
    assert "whatever" in result.stderr


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x10\x00\xff\xff\xff" + b"x" * 16,
        struct.pack(">i", -1) * 4,
        b"\x16\x03\x01" * 9,
    ],
)
def test_garbage_closes_one_connection_and_harms_nothing(server: Ready, rmqkit: Run, garbage: bytes) -> None:
    """The name server and the broker continue to serve other connections."""
    for key in ("namesrv", "broker"):
        host, port = server.where[key].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(garbage)
            connection.settimeout(30)
            assert connection.recv(100) == b""
    assert rmqkit("send", "Fine", "x", "--namesrv", server.where["namesrv"]).returncode == 0


def test_tls_that_its_own_broker_would_not_get_through(rmqkit: Run, tmp_path: Path) -> None:
    """The exit code is 2 and the error names the settings if the name server accepts only TLS and the broker
    of the same process would register without."""
    certs.write(tmp_path)
    result = rmqkit(
        "serve",
        "--data",
        "data",
        "--set",
        "tls.server.mode=enforcing",
        "--set",
        "tls.server.certPath=server.pem",
        "--set",
        "store=memory",
    )
    assert result.returncode == 2
    assert "set tls.enable = true" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name, because socket paths are limited."""
    with tempfile.TemporaryDirectory(prefix="rmqkit-") as folder:
        yield Path(folder)


def test_verbs_go_by_the_environment(start: Start, rmqkit: Run, tmp_path: Path, short_folder: Path) -> None:
    """Verbs reach a server that accepts only TLS, and its unix socket, by settings of the environment."""
    certs.both(tmp_path)
    socket_address = f"unix://{short_folder}/s"
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "server.pem",
        "tls.server.keyPath": "server.key",
        "tls.enable": "true",
        "tls.client.trustCertPath": "client-trust.pem",
        "listeners": socket_address,
        "store": "memory",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    server = start("serve", "--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", *words)
    trusting = {"RMQKIT_TLS_ENABLE": "true", "RMQKIT_TLS_CLIENT_TRUST_CERT_PATH": "client-trust.pem"}
    sent = rmqkit("send", "Safe", "hello", "--namesrv", server.where["namesrv"], env=trusting)
    assert sent.returncode == 0, sent.stderr
    plain = rmqkit("send", "Safe", "hello", "--namesrv", server.where["namesrv"])
    assert plain.returncode == 1
    assert "tls.enable" in plain.stderr
    assert "hello" in rmqkit("consume", "Safe", "--namesrv", socket_address).stdout
    assert server.stop() == 0
    assert not (short_folder / "s").exists()


def test_the_brokers_port_is_tcp(rmqkit: Run) -> None:
    """Another scheme is refused with exit code 2 and the right setting."""
    for address in ("tls://127.0.0.1:0", "unix:///run/s"):
        result = rmqkit("broker", "--data", "data", "--broker", address)
        assert result.returncode == 2
        assert f"--set listeners={address}" in result.stderr


def test_a_stop_is_in_the_log(tmp_path: Path) -> None:
    """The signal and the end: a graceful stop is told from a kill. Warnings have the form of the other lines,
    the first one included, and with RMQKIT_LOG_FORMAT=json every line is an object."""
    log = tmp_path / "log"
    words = ["namesrv", "--listen", "127.0.0.1:0", "--set", "odd=1"]
    for form in ("text", "json"):
        reading, writing = os.pipe()
        with open(os.devnull) as null, log.open("wb") as errors, open(writing, "wb") as out:
            variables = {"RMQKIT_LOG_FORMAT": form, "RMQKIT_LOG_LEVEL": "info"}
            process = spawn(
                words,
                tmp_path,
                stdin=null.fileno(),
                stdout=out.fileno(),
                stderr=errors.fileno(),
                env=variables,
            )
        with open(reading) as stdout:
            assert stdout.readline().startswith("rmqkit ready")
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        lines = log.read_text().splitlines()
        if form == "json":
            told = [json.loads(line) for line in lines]
            assert [each["message"] for each in told[-2:]] == ["SIGTERM: stopping", "stopped"]
            assert told[0]["level"] == "WARNING"
        else:
            assert [line.split(": ", 1)[1] for line in lines[-2:]] == ["SIGTERM: stopping", "stopped"]
            assert " WARNING rmqkit.cli.options: unknown setting 'odd'" in lines[0]


# --- the port for gRPC --------------------------------------------------------------------------------------

FREE = ("--data", "data", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--set", "store=memory")


def _is_open(where: str) -> bool:
    host, _, port = where.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_serve_listens_for_grpc(start: Start) -> None:
    """By default, and the ready line says where: at the port that clients know, or at a free one."""
    first, second = start("serve", *FREE), start("serve", *FREE)
    assert first.where["grpc"] != second.where["grpc"]
    assert _is_open(first.where["grpc"])
    assert _is_open(second.where["grpc"])
    assert (first.stop(), second.stop()) == (0, 0)


def test_the_port_for_grpc_is_chosen_or_switched_off(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """--grpc says where, or nowhere; the settings say it as well, and a port that is taken stops the
    start."""
    chosen = start("serve", *FREE, "--grpc", "127.0.0.1:0")
    assert _is_open(chosen.where["grpc"])
    taken = rmqkit("serve", *FREE, "--grpc", chosen.where["grpc"])
    assert taken.returncode == 2
    assert f"cannot listen on {chosen.where['grpc']}" in taken.stderr
    assert "--grpc HOST:PORT" in taken.stderr
    assert chosen.stop() == 0
    (tmp_path / "off.toml").write_text('[plugins.grpc]\nlisten = "none"\n')
    for words in (("--grpc", "none"), ("--config", "off.toml")):
        ready = start("serve", *FREE, *words)
        assert "grpc" not in ready.where
        assert ready.stop() == 0


def test_a_broker_alone_listens_for_grpc_when_told(start: Start) -> None:
    """`rmqkit broker` has no further port by default."""
    words = FREE[:2] + FREE[4:]
    silent, asked = (
        start("broker", *words),
        start("broker", *words[2:], "--grpc", "127.0.0.1:0", "--data", "b"),
    )
    assert "grpc" not in silent.where
    assert _is_open(asked.where["grpc"])
    assert (silent.stop(), asked.stop()) == (0, 0)


def test_servers_for_tests_in_other_languages(start: Start, rmqkit: Run) -> None:
    """--memory keeps nothing; with --control there is a port that tells the time, and puts it forward."""
    server = start("serve", "--memory", "--control", "127.0.0.1:0", "--brokers", "2")
    assert server.where["store"] == "memory"
    assert server.where["name"] == "broker-a,broker-b"
    assert server.where["grpc"] == server.where["broker"].split(",")[0]
    control = f"http://{server.where['control']}"
    with urlopen(f"{control}/clock") as answer:
        before_ms = json.load(answer)["now_ms"]
    with urlopen(f"{control}/clock/advance", b'{"ms": 60000}') as answer:
        assert json.load(answer)["now_ms"] >= before_ms + 60_000
    assert rmqkit("send", "T", "hello", "--namesrv", server.where["namesrv"]).returncode == 0
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--memory, which it needs, is missing"),
        (("--memory", "--data", "somewhere"), "nothing is kept"),
        (("--memory", "--replicas", "1"), "take --brokers"),
        (("--memory", "--grpc", "127.0.0.1:0"), "clients of gRPC connect to the broker's port"),
        (("--memory", "--set", "nothingOfTheKind=1"), "nothingOfTheKind"),
    ],
)
def test_options_that_servers_for_tests_do_not_take(rmqkit: Run, words: tuple[str, ...], said: str) -> None:
    """One line says why."""
    ended = rmqkit("serve", "--control", "127.0.0.1:0", *words)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
