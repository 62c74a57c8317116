"""What a message costs in Python instructions of the broker, with and without hooks.

    python -m benchmarks.instructions

The broker runs in this process over memory pipes, and the interpreter counts the instructions of its code for
each load. Unlike times, the counts are nearly the same on every machine and under any load; they leave out
what compiled code costs, such as checksums and system calls.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from benchmarks.load.frames import PULL, SendShape, encode
from rmqkit.testing.broker import dialer, running_broker

_ROOT = str(Path(__file__).parent.parent)
_METRICS = {"metricsPromExporterPort": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "metrics": {"hooks": "metrics", **_METRICS},
    "audit": {"hooks": "audit"},
    "metrics and audit": {"hooks": "metrics,audit", **_METRICS},
}
#: Load -> messages in one write of the client, and how many writes are counted.
LOADS = {"window": (32, 20), "batch": (128, 6), "single": (1, 200), "pull": (32, 50)}
#: Work of the broker beside its requests, which comes when time has passed.
_BESIDE = ("background", "index", "service", "recorder", "run.py", "internal_queue", "transport", "testing")


class Counter:
    """Counts the instructions of the broker's code while it is switched on."""

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[str, bool] = {}

    def switch(self, on: bool) -> None:
        """Count from now on, or no longer."""
        sys.settrace(self._called if on else None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in self._known:
            own = name.startswith(_ROOT) and "site-packages" not in name and "benchmarks" not in name
            self._known[name] = own and not any(part in name for part in _BESIDE)
        if not self._known[name]:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "opcode"
        return self._stepped


def request(load: str) -> bytes:
    """What a client writes at once."""
    if load == "pull":
        fields = {"consumerGroup": "load", "topic": "bench", "queueId": "1", "queueOffset": "0"}
        fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        return encode(PULL, 1_000_000_001, fields | {"subscription": "*", "subVersion": "0"})
    shape = SendShape("bench", 1024, 32 if load == "batch" else 1, 4)
    frames = [shape.frame(queue) for queue in range(4)]
    return frames[1] if load == "single" else b"".join(frames * (8 if load == "window" else 1))


async def measure(variant: str) -> dict[str, float]:
    """Load -> instructions for each message."""
    counter, found = Counter(), {}
    with tempfile.TemporaryDirectory() as directory:
        async with running_broker(
            Path(directory), scheme="memory", store="mmap", **VARIANTS[variant]
        ) as running:
            for load, (messages, writes) in LOADS.items():
                # The first time makes topic and queues.
                for measured in (False, True):
                    counter.count = 0
                    counter.switch(measured)
                    async with await dialer("memory")(running.address, 5_000) as stream:
                        for _ in range(writes):
                            await stream.send(request(load))
                            answers = 0
                            while answers < (
                                1
                                if load in ("single", "pull")
                                else messages // (32 if load == "batch" else 1)
                            ):
                                answers += (await stream.receive(1 << 20)).count(b'"opaque":')
                    counter.switch(False)
                found[load] = counter.count / messages / writes
    return found


def main() -> None:
    """Print a line for each variant: instructions for each message, and the ratio to none."""
    off: dict[str, float] = {}
    print(f"{'hooks':20}" + "".join(f"{load:>18}" for load in LOADS))
    for variant in VARIANTS:
        found = trio.run(measure, variant)
        off = off or found
        print(
            f"{variant:20}"
            + "".join(f"{found[load]:10.0f} ({found[load] / off[load]:.3f})" for load in LOADS)
        )


if __name__ == "__main__":
    main()
