"""One `rmqkit serve` for a benchmark that starts it with its own words: its addresses and processor time."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

_ROOT = Path(__file__).parent.parent
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: In the first line, `rmqkit ready namesrv=... broker=...`.
_ADDRESS = re.compile(r"(\w+)=(\S+)")


@frozen
class OneServer:
    """A running name server with a broker, as one process."""

    pid: int
    namesrv: str
    broker: str

    def cpu_s(self) -> float:
        """Processor seconds, user and system, so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _unchanged(words: Sequence[str]) -> list[str]:
    return list(words)


@contextmanager
def serving(
    directory: str | Path,
    *more: str,
    namesrv: str = "127.0.0.1:0",
    broker: str = "127.0.0.1:0",
    wrap: Callable[[Sequence[str]], list[str]] = _unchanged,
) -> Iterator[OneServer]:
    """A server that is ready, with its data in a directory; ends with SIGTERM. `wrap` changes the command.
    Raises SystemExit when it does not start."""
    words = [sys.executable, "-m", "rmqkit.cli", "serve", "--data", str(directory)]
    words += ["--namesrv", namesrv, "--broker", broker, *more]
    with subprocess.Popen(wrap(words), cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("rmqkit ready"):
                raise SystemExit("the server does not start")
            where = dict(_ADDRESS.findall(line))
            yield OneServer(process.pid, where["namesrv"], where["broker"])
        finally:
            process.terminate()


def free_port() -> int:
    """A port of loopback that is free for TCP and UDP now."""
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        stream.bind(("127.0.0.1", 0))
        port: int = stream.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        return port
