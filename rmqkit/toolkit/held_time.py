"""How long a call has held the event loop."""

from __future__ import annotations

from time import perf_counter, thread_time

try:
    import resource
except ModuleNotFoundError:  # Windows, where clients load the filters
    resource = None  # type: ignore[assignment]

#: Waits that are shorter in all do not count.
_WAITED_S = 0.001


def switches() -> int:
    """How often this thread has given up the processor because it waited; 0 where the system does not say, so
    that waiting never counts. Systems that do not count for each thread count for all."""
    if resource is None:
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


class HeldTime:
    """Measures from its creation on: processor time, which does not contain what other programs use, but wall
    time if the thread has waited, because then the callee has slept or waited for a device."""

    __slots__ = ("_cpu_s", "_switches", "_wall_s")

    def __init__(self) -> None:
        self._switches = switches()
        self._wall_s, self._cpu_s = perf_counter(), thread_time()

    def elapsed_s(self) -> float:
        wall_s, cpu_s = perf_counter() - self._wall_s, thread_time() - self._cpu_s
        return wall_s if wall_s - cpu_s > _WAITED_S and switches() > self._switches else cpu_s
