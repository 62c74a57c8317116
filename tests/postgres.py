"""A PostgreSQL server for tests, of the programs on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.ports import LOOPBACK, free_port

READY = "database system is ready to accept connections"
#: PostgreSQL refuses to run as root.
_USER = "nobody" if os.geteuid() == 0 else None


def programs() -> Path | None:
    """The folder of the programs of PostgreSQL; None where there are none."""
    named = shutil.which("initdb")
    found = [Path(named).resolve()] if named else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Postgres:
    """A running server at a port of the loopback interface."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._numbers = count()

    def url(self, database: str) -> str:
        """The address of a database for SQLAlchemy, with a driver that knows both faces."""
        return f"postgresql+psycopg://rmqkit@{LOOPBACK}:{self._port}/{database}"

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"test{next(self._numbers)}"
        words = [str(self._folder / "createdb"), "-h", LOOPBACK, "-p", str(self._port), "-U", "rmqkit", name]
        subprocess.run(words, check=True, capture_output=True)
        return self.url(name)


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """A server without passwords, whose data is deleted with it. It does not wait for the device."""
    with tempfile.TemporaryDirectory(prefix="rmqkit-postgres-") as directory:
        if _USER is not None:
            shutil.chown(directory, _USER)
        made = [
            str(folder / "initdb"),
            "-D",
            directory,
            "-U",
            "rmqkit",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        subprocess.run(made, check=True, capture_output=True, user=_USER, cwd=directory)
        port = free_port()
        settings = {"listen_addresses": LOOPBACK, "port": port, "unix_socket_directories": "", "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with subprocess.Popen(
            [str(folder / "postgres"), "-D", directory, *options],
            user=_USER,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stderr is not None
                lines: list[str] = []
                while not (lines and READY in lines[-1]):
                    lines.append(process.stderr.readline())
                    assert lines[-1], "".join(lines)
                # A server whose log nobody reads would stop at the end of the pipe.
                reading = threading.Thread(target=process.stderr.read)
                reading.start()
                yield Postgres(folder, port)
            finally:
                # A fast shutdown, which does not wait for clients.
                process.send_signal(signal.SIGINT)
            reading.join()
