"""Slows groups down that read more cold data than they may (Java: ColdDataCgCtrService,
ColdDataPullRequestHoldService, PullMessageProcessor; behaviour sheet, C12).

A pull beyond the budget is refused, and a push consumer tries again after a pause of its own; that of a
pull consumer waits, and then gets one message. Reads of the end of the log are never affected.
"""

from __future__ import annotations

import trio

from rmqkit.errors import RequestDelayed, RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model.names import PRESET_GROUPS, is_system_group
from rmqkit.model.subscription import CONSUME_PASSIVELY
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import ConsumeContext, ConsumeMessageHook
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.request_hooks import EachRequestHook
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import PullMessageRequestHeader
from rmqkit.toolkit.cold_reads import hot_bytes
from rmqkit_protection.cold_budget import ColdBudget
from rmqkit_protection.cold_settings import ColdReadSettings

_log = limited_logger(__name__)
_ROUND_S = 5
#: How long a pull consumer waits. Java lets it wait from three to eight seconds.
_HOLD_S = 3.0


class ColdReads(Service):
    """Counts what groups read, in rounds of five seconds. When cancelled, the last round goes on."""

    name = "cold-reads"

    def __init__(self) -> None:
        self.budget = ColdBudget()

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        def look() -> None:
            self.budget.settings = broker.config.owned(ColdReadSettings)

        look()
        broker.on_config_change.append(look)
        try:
            task_status.started()
            while True:
                await trio.sleep(_ROUND_S)
                self.budget.next_round(broker.clock.now_ms())
        finally:
            broker.on_config_change.remove(look)


def budget_of(broker: Broker) -> ColdBudget | None:
    """The budget of a broker; None where its service is switched off."""
    service = broker.registry.services.get(ColdReads.name)
    if not isinstance(service, ColdReads) or service.name in broker.config.disabled_services:
        return None
    return service.budget


class _Cold(NeedsBroker):
    """Knows the budget of its broker, and which messages are cold."""

    _broker: RequestBroker
    _budget: ColdBudget | None = None

    def open(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._budget = budget_of(broker)

    def _is_cold(self, budget: ColdBudget, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message counts as being on the device alone. One whose unit of the queue is not in memory
        does."""
        store = self._broker.store
        try:
            units = store.read_units(topic, queue_id, offset, 1)
        except NotInMemory:
            return True
        in_memory_bytes = hot_bytes(budget.settings.access_message_in_memory_hot_ratio)
        return bool(units) and store.end_offset - units[0].physical_offset > in_memory_bytes


class ColdCounts(_Cold, ConsumeMessageHook):
    """Counts the cold data that pulls are answered with. What a filter has looked at and rejected is not
    counted."""

    def before(self, context: ConsumeContext) -> None:
        budget = self._budget
        if budget is None or not context.success or _is_exempt(context.group):
            return
        if self._is_cold(budget, context.topic, context.queue_id, context.offset):
            budget.add(context.group, context.body_bytes, self._broker.clock.now_ms())


class ColdPulls(_Cold, EachRequestHook):
    """Refuses or delays pulls of groups that have used their budget up."""

    servers = frozenset({BROKER})
    codes = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})

    def before_each(self, request: Command, peer: Peer) -> None:
        budget = self._budget
        if budget is None or not budget.groups:
            return
        header = request.header(PullMessageRequestHeader)
        group = header.consumer_group
        if not budget.is_used_up(group) or not self._is_cold(
            budget, header.topic, header.queue_id, header.queue_offset
        ):
            return
        _log.info(
            "group %s reads cold data: %d bytes in this round (its threshold: %d), %d by all groups",
            group,
            budget.groups[group].size_bytes,
            budget.threshold(group),
            budget.total_bytes,
        )
        online = self._broker.clients.consumers.get(group)
        if online is not None and online.consume_type == CONSUME_PASSIVELY:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"group {group} reads more old messages than it may, as coldDataFlowControlEnable has it;"
                " it may read on in a few seconds",
            )
        limit_to_one(request)
        raise RequestDelayed(_HOLD_S)


def limit_to_one(request: Command) -> None:
    """Let a pull ask for one message."""
    request.fields()["maxMsgNums"] = "1"
    if isinstance(request.typed, PullMessageRequestHeader):
        request.typed.max_msg_nums = 1


def _is_exempt(group: str) -> bool:
    """Groups of tools and of the broker are not counted, so they never wait."""
    return is_system_group(group) or group in PRESET_GROUPS


__all__ = ["ColdCounts", "ColdPulls", "ColdReads", "budget_of"]
