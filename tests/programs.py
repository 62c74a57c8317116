"""`rmqkit` in processes of its own, which start in a tenth of the time: a process that has imported it forks.

The fork has the arguments, working directory, environment and standard streams of its caller, runs
`rmqkit.cli.main` or a Python file, and ends as an interpreter does. It is the child of a watcher, which
reports its exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from attrs import define

from tests import namespaces

ROOT = Path(__file__).parent.parent
#: The program as it is installed, for tests that need more than its arguments, streams and signals.
PROGRAM = str(Path(sys.executable).with_name("rmqkit"))
DEADLINE_S = 300
_NUMBER = struct.Struct("!i")


def clean_environment() -> dict[str, str]:
    """The environment without settings of rmqkit; which code runs, compiled or pure, stays as it is here."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "RMQKIT_PURE" or not name.startswith(("RMQKIT_", "NAMESRV_"))
    }


@define
class Program:
    """One process. Its methods are those of subprocess.Popen."""

    pid: int
    _status: int
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code, negative for a signal. Raises TimeoutExpired."""
        code = self._ended(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, within_s: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], within_s)[0]:
            self.returncode = _read_number(self._status)
            os.close(self._status)
        return self.returncode


def spawn(
    words: Sequence[str | bytes],
    directory: Path,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    env: Mapping[str, str] | None = None,
    files: tuple[int, int] | None = None,
    namespace: str = "",
) -> Program:
    """Start `rmqkit WORDS` with these file descriptors, or the Python file that the first word names; `files`
    are the soft and the hard limit of open files, `namespace` is a network namespace (see `prepare`)."""
    order = {
        "words": [os.fsdecode(word) for word in words],
        "directory": str(directory),
        "environment": clean_environment() | dict(env or {}),
        "files": files,
        "namespace": namespace,
    }
    status, reporting = os.pipe()
    try:
        socket.send_fds(_forking(), [json.dumps(order).encode()], [stdin, stdout, stderr, reporting])
    finally:
        os.close(reporting)
    return Program(_read_number(status), status)


def prepare() -> None:
    """Start the process that forks. Its network namespace, the default of programs, is that of the first
    thread that calls this or starts a program."""
    _forking()


def run(
    words: Sequence[str | bytes], directory: Path, *, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `rmqkit WORDS`, or a Python file, to its end. With variables for the interpreter itself nothing is
    forked."""
    if any(name.startswith("PYTHON") for name in env or ()):
        return subprocess.run(
            [PROGRAM, *words],
            cwd=directory,
            env=clean_environment() | dict(env or {}),
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        program = spawn(
            words, directory, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=env
        )
        try:
            code = program.wait()
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([PROGRAM, *words], code, out.read(), err.read())


def _read_number(fd: int) -> int:
    data = os.read(fd, _NUMBER.size)
    assert data, "the process that forks, or a watcher, has died"
    return int(_NUMBER.unpack(data)[0])


# --- the process that forks ---------------------------------------------------------------------------------


@cache
def _forking() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.programs"], cwd=ROOT, env=clean_environment(), stdin=theirs.fileno()
        )

    def end() -> None:
        ours.close()
        process.wait(DEADLINE_S)

    atexit.register(end)
    return ours


def main() -> None:
    """Fork for each order, until the connection closes."""
    import anyio._backends._trio  # anyio imports it when it is first used

    from rmqkit import config
    from rmqkit.cli import info, messages, serve, status, store, topic
    from rmqkit.plugin import loader

    assert all((anyio, info, messages, serve, status, store, topic))
    loader.load(config.load(environ={}))
    # The garbage collectors of the forks leave alone what was there before: they would copy all of its pages.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers need nobody to wait for them
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            data, fds, _, _ = socket.recv_fds(orders, 1 << 20, 4)
            if not data:
                return
            if os.fork() == 0:
                orders.close()
                _watch(json.loads(data), *fds)
            for fd in fds:
                os.close(fd)


def _watch(order: dict[str, object], stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Fork the program, and report its process id and then its exit code. Returns in the program alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(order, stdin, stdout, stderr)
    for fd in (0, 1, 2, stdin, stdout, stderr):
        os.close(fd)
    os.write(status, _NUMBER.pack(pid))
    os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _become(order: dict[str, object], *streams: int) -> NoReturn:
    from rmqkit.cli import main as program

    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    match order:
        case {"words": list(words), "directory": str(directory), "environment": dict(environment)}:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = words if _is_file(words) else ["rmqkit", *words]
    match order["files"]:
        case [int(soft), int(hard)]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if order["namespace"]:
        namespaces.enter(str(order["namespace"]))
    if _is_file(sys.argv):
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
    sys.exit(program())


def _is_file(words: Sequence[str]) -> bool:
    return bool(words) and words[0].endswith(".py")


if __name__ == "__main__":
    main()
