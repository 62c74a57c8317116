"""A backup of an elected group whose master changes meanwhile."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqkit.client import BlockingClient, Message
from rmqkit.model.backup import SIZES
from tests import programs
from tests.faults.kit import SMALL_FILES, Server, set_words, started
from tests.plugins.failover import etcd
from tests.plugins.failover.test_runbook import close, documented, until_status, write_settings
from tests.ports import LOOPBACK, free_port

MEMBERS = ("one", "two")
#: Eight files of the log, of which the copy is to have three when the master changes.
MESSAGES, SIZE_BYTES, FILES = 250, 30_000, 3
#: So slow that the whole copy would take a minute.
SLOW = ("haFlowControlEnable=true", "maxHaTransferByteInSecond=500000")


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
@pytest.mark.parametrize("how", ["it is killed", "another is asked for"])
def test_the_master_changes_while_it_is_copied(tmp_path: Path, how: str) -> None:
    """The backup goes on with the new one, says so, and has everything that was acknowledged."""
    status, switch, _, _ = documented(tmp_path)
    with ExitStack() as stack:

        def start(words: list[str], *more: str) -> Server:
            server = started([*words, *more], tmp_path)
            stack.callback(close, server)
            assert server.await_ready()
            return server

        (tmp_path / "etcd").mkdir()
        coordinator = stack.enter_context(etcd.running_etcd(tmp_path / "etcd"))
        namesrv = f"{LOOPBACK}:{free_port()}"
        start(["namesrv", "--listen", namesrv])
        write_settings(tmp_path, coordinator, namesrv)
        servers: dict[str, Server] = {}
        for name in MEMBERS:
            file = str(tmp_path / f"{name}.toml")
            servers[name] = start(["broker", "--config", file, *set_words(SMALL_FILES)])
            found = until_status(tmp_path, status, master="one")
        while len(found["inSync"]) < len(MEMBERS):
            found = until_status(tmp_path, status, master="one")
        with BlockingClient(namesrv) as client, client.producer("producers", timeout_ms=60_000) as producer:
            for number in range(MESSAGES):
                producer.send(Message("T", Random(number).randbytes(SIZE_BYTES)))
        slowed = programs.run(["cluster", "set", *SLOW, "--namesrv", namesrv], tmp_path)
        assert slowed.returncode == 0, slowed.stderr

        ended: list[Any] = []
        words = ["cluster", "backup", "copy", "--json", "--namesrv", namesrv]
        backup = threading.Thread(target=lambda: ended.append(programs.run(words, tmp_path)))
        backup.start()
        copy = tmp_path / "copy" / "orders"
        while len([*copy.glob("commitlog/*")]) < FILES:
            assert backup.is_alive(), ended
            backup.join(0.05)
        if how == "it is killed":
            servers["one"].kill()
        else:
            switched = programs.run(switch, tmp_path)
            assert switched.returncode == 0, switched.stderr
        backup.join(programs.DEADLINE_S)
        (done,) = ended
        assert done.returncode == 0, done.stderr.decode()
        assert "is the master of orders now, going on there" in done.stderr.decode()
        (one,) = json.loads(done.stdout)
        assert one["end"] > MESSAGES * SIZE_BYTES
        sizes = set_words({key: SMALL_FILES[key] for key in SIZES})
        verified = programs.run(["store", "verify", str(copy), *sizes], tmp_path)
        assert verified.returncode == 0, verified.stdout
        exported = programs.run(["store", "export", str(copy), "T", *sizes], tmp_path)
        assert len(exported.stdout.splitlines()) == MESSAGES
