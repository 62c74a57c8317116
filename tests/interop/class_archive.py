"""The classes that a program of Java loads, kept from its first run for all later ones (class data sharing).
Apache's servers then take two thirds of the processor time until they serve."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.interop.builds import cache_dir

#: Archive that a JVM of this process writes at its end -> its name when whole, and what keeps other JVMs from
#: writing it as well.
_writing: dict[Path, tuple[Path, IO[bytes]]] = {}
_WRITE = "-XX:ArchiveClassesAtExit="
#: A JVM leaves an archive of other files out, and would say so among the lines of the program.
_SILENT = "-Xlog:disable"


def sharing(command: Sequence[str]) -> list[str]:
    """The command of a JVM, `java ... -cp CLASSPATH MAIN ...`, with the archive of its program, or with the
    order to write it. `keep` is to be called when it has ended. Other commands stay as they are."""
    if "-cp" not in command:
        return [*command]
    java, *rest = command
    at = command.index("-cp")
    program = "\0".join([os.path.realpath(java), *command[at + 1 : at + 3]])
    archive = cache_dir() / f"classes-{hashlib.sha256(program.encode()).hexdigest()[:16]}.jsa"
    if archive.exists():
        return [java, f"-XX:SharedArchiveFile={archive}", _SILENT, *rest]
    lock = archive.with_suffix(".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return [*command]
    written = archive.with_suffix(".written")
    written.unlink(missing_ok=True)
    _writing[written] = archive, lock
    return [java, f"{_WRITE}{written}", _SILENT, *rest]


def is_written_by(command: object) -> bool:
    """Whether the JVM of a command is to write an archive at its end."""
    return _of(command) is not None


def keep(command: object, *, whole: bool = True) -> None:
    """The JVM of a command has ended: keep what it has written, unless it was killed."""
    written = _of(command)
    if written is not None:
        archive, lock = _writing.pop(written)
        if whole and written.exists():
            written.replace(archive)
        lock.close()


def _of(command: object) -> Path | None:
    """The archive that the JVM of a command writes."""
    assert isinstance(command, Sequence)
    words = (Path(str(word).removeprefix(_WRITE)) for word in command)
    return next((word for word in words if word in _writing), None)


def run(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, with `sharing`."""
    words = sharing(command)
    whole = False
    try:
        done = subprocess.run(words, check=False, **settings)
        whole = done.returncode >= 0
        return done
    finally:
        keep(words, whole=whole)
