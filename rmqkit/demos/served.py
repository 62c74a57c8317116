"""A broker for a demo, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqkit.errors import BrokerProcessFailed

_STOP_S = 20


@contextmanager
def served(data: Path, log_level: str = "WARNING") -> Iterator[dict[str, str]]:
    """Run a name server and a broker on free loopback ports with default settings. Yields the addresses of
    the ready line by name (`namesrv`, `broker`).

    Leaving the context stops them gracefully. Raises BrokerProcessFailed when they do not start; the reason
    is then on standard error.
    """
    words = [sys.executable, "-m", "rmqkit.cli", "serve", "--data", str(data)]
    words += ["--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RMQKIT_", "NAMESRV_"))
    }
    with subprocess.Popen(
        [*words, "--log-level", log_level], env=environment, text=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            if not ready.startswith("rmqkit ready "):
                raise BrokerProcessFailed("the broker did not start; its messages are above")
            yield dict(word.split("=", 1) for word in ready.split() if "=" in word)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
