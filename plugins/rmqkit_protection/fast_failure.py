"""Refuses requests that have waited too long (Java: BrokerFastFailure; behaviour sheet, C11).

A Java broker has a queue for each of its thread pools, from which it drops requests. Here a request waits,
after it has arrived, only where one loop takes turns: behind other requests of its connection that arrived
with it, while its connection has too many answers under way, and while others get their large answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from rmqkit.errors import RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.toolkit import request_kinds
from rmqkit.toolkit.request_kinds import kind_of
from rmqkit_protection.settings import ProtectionSettings

_log = limited_logger(__name__)


def limits_ms(settings: ProtectionSettings) -> Mapping[str, int]:
    """Kind of request -> the waiting time after which it is refused. Other kinds wait without a limit, and
    all of them where fast failure is off."""
    if not settings.broker_fast_failure_enable:
        return {}
    return {
        request_kinds.SEND: settings.wait_time_mills_in_send_queue,
        request_kinds.PULL: settings.wait_time_mills_in_pull_queue,
        request_kinds.LITE_PULL: settings.wait_time_mills_in_lite_pull_queue,
        request_kinds.HEARTBEAT: settings.wait_time_mills_in_heartbeat_queue,
        request_kinds.TRANSACTION: settings.wait_time_mills_in_transaction_queue,
        request_kinds.ACK: settings.wait_time_mills_in_ack_queue,
        request_kinds.ADMIN: settings.wait_time_mills_in_admin_broker_queue,
    }


class FastFailure(NeedsBroker, RpcHook):
    """Refuses requests with SYSTEM_BUSY that have waited longer than their kind may, so that a producer tries
    another broker while it still can."""

    servers = frozenset({BROKER})

    def __init__(self) -> None:
        self._limits_ms = limits_ms(ProtectionSettings())

    def open(self, broker: RequestBroker) -> None:
        def look() -> None:
            self._limits_ms = limits_ms(broker.config.owned(ProtectionSettings))

        look()
        broker.on_config_change.append(look)

    @property
    def patience_s(self) -> float:
        return min(self._limits_ms.values(), default=inf) / 1000

    def waited(self, requests: Sequence[Command], peer: Peer, waited_s: float) -> Refusals | None:
        waited_ms, limits = round(waited_s * 1000), self._limits_ms
        kinds = [kind_of(request.code) for request in requests]
        late = [at for at, kind in enumerate(kinds) if waited_ms >= limits.get(kind, inf)]
        if not late:
            return None
        counts = Counter(kinds[at] for at in late)
        _log.warning(
            "requests of %s refused after they had waited for %d ms: %s",
            peer.remote_text,
            waited_ms,
            ", ".join(f"{count} {kind}" for kind, count in counts.items()),
        )
        refusal = RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {waited_ms}ms, size of queue: {len(requests) - len(late)}",
        )
        return dict.fromkeys(late, refusal)


__all__ = ["FastFailure", "limits_ms"]
