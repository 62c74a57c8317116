"""What a message costs in Python instructions of the broker, with and without hooks.

    python -m benchmarks.instructions

The broker runs in this process over memory pipes, and the interpreter counts the instructions of its code for
each load, without those of its services beside the requests and of opening connections. Unlike times, the
counts are the same on every machine and under any load; they leave out what compiled code costs, such as
checksums and system calls. Two variants have a hook of their own that checks each send and refuses none: one
looks at the columns of a run, the other at one send at a time.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import trio
import trio.testing

from benchmarks import refusing
from benchmarks.code import tell_code
from benchmarks.load.frames import PULL, SendShape, encode
from benchmarks.refusing import RefusesEach, RefusesRuns, RefusingPlugin
from rmqkit.testing.broker import dialer, running_broker

_ROOT = str(Path(__file__).parent.parent)
_METRICS = {"metricsPromExporterPort": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "metrics": {"hooks": "metrics", **_METRICS},
    "audit": {"hooks": "audit"},
    "metrics and audit": {"hooks": "metrics,audit", **_METRICS},
    "refusing, runs": {"extra": [("refusing", RefusingPlugin(RefusesRuns()))]},
    "refusing, each": {"extra": [("refusing", RefusingPlugin(RefusesEach()))]},
}
#: Load -> messages in one write of the client, and how many writes are counted.
LOADS = {"window": (32, 20), "batch": (128, 6), "single": (1, 200), "pull": (32, 50)}
#: Work of the broker beside its requests, which comes when time has passed.
_BESIDE = ("background", "index", "service", "recorder", "run.py", "internal_queue", "transport", "testing")


class Counter:
    """Counts the instructions of the broker's code while it is switched on."""

    def __init__(self) -> None:
        self.count = 0
        self._own: dict[str, bool] = {}
        self._beside: dict[str, bool] = {}

    def switch(self, on: bool) -> None:
        """Count from now on, or no longer."""
        # Python 3.12 counts instructions if a frame had asked for it when the tracing begins.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._called if on else None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        caller = frame.f_back
        # What a service calls belongs to the service.
        by_service = caller is not None and self._is_broker(caller) and caller.f_trace is None
        if by_service or not self._is_broker(frame) or self._is_beside(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _is_broker(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if name not in self._own:
            own = name.startswith(_ROOT) and "site-packages" not in name
            self._own[name] = own and ("benchmarks" not in name or name == refusing.__file__)
        return self._own[name]

    def _is_beside(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if name not in self._beside:
            self._beside[name] = any(part in name[len(_ROOT) :] for part in _BESIDE)
        return self._beside[name]

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
                    async with await dialer("memory")(running.address, 5_000) as stream:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                        counter.count = 0
                        counter.switch(measured)
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
    tell_code()
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
