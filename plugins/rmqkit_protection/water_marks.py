"""Says which requests wait (Java: BrokerController.printWaterMark; behaviour sheet, C11)."""

from __future__ import annotations

import logging

import trio

from rmqkit.plugin.broker import Broker
from rmqkit.plugin.service import Service
from rmqkit.toolkit.request_kinds import kind_of

_log = logging.getLogger(__name__)
_PERIOD_S = 1


class WaterMarks(Service):
    """Looks each second for requests that wait, and logs their numbers; Java logs zeros as well. Cancellation
    leaves nothing behind."""

    name = "water-marks"

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            await trio.sleep(_PERIOD_S)
            waiting = broker.waiting.by(kind_of, trio.current_time())
            if waiting:
                _log.info(
                    "requests wait: %s",
                    ", ".join(
                        f"{found.count} {kind} (the first for {found.longest_s * 1000:.0f} ms)"
                        for kind, found in sorted(waiting.items())
                    ),
                )


__all__ = ["WaterMarks"]
