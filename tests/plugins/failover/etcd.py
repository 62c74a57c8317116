"""An etcd on free loopback ports, for tests; Debian's package etcd-server has the program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.ports import free_port

PROGRAM = shutil.which("etcd")
ABSENT = "etcd is not installed: Debian's package etcd-server has it"
#: etcd has this long to start.
_PATIENCE_S = 60.0


@contextmanager
def running_etcd(directory: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Its address, `host:port`, once it answers. Its data is in `directory`, and nothing is synced."""
    assert PROGRAM is not None, ABSENT
    port, peers = free_port(0, 1), free_port(0, 1)
    client, peer = f"http://{host}:{port}", f"http://127.0.0.1:{peers}"
    words = [PROGRAM, "--data-dir", str(directory / "data"), "--unsafe-no-fsync", "--log-level", "error"]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    words += ["--initial-cluster", f"default={peer}"]
    words += ["--heartbeat-interval", "10", "--election-timeout", "100"]
    with (directory / "log.txt").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        _await(client, process, directory / "log.txt")
        yield f"{host}:{port}"
    finally:
        process.kill()
        process.wait()


def _await(client: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it elects itself; asks again and again, for it says it in no other way."""
    transport = httpx.HTTPTransport(retries=10)
    with httpx.Client(transport=transport, timeout=_PATIENCE_S, trust_env=False) as asked:
        found = asked.post(f"{client}/v3/kv/range", json={"key": "AA=="})
    assert found.status_code == httpx.codes.OK, (found.text, process.poll(), log.read_text())
