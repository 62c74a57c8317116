"""What becomes of leased messages after their handlers (Java: ConsumeMessagePopConcurrentlyService)."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from rmqkit.client.consumer.breaker import Breaker
from rmqkit.client.consumer.delivery import DeadLetter, Retry
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.leases import Leases
from rmqkit.client.consumer.pop_options import PopOptions
from rmqkit.client.consumer.popping import Popper
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.retry_schedule import DEAD_LETTER, RetrySchedule
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.consumer.settling import SUSPEND_S, HandlerOutcomes, log_dead, why_dead
from rmqkit.client.consumer.statistics import ConsumeStatistics
from rmqkit.client.instance import Instance
from rmqkit.errors import DecodeError, RmqError
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import GroupRequestHeader

log = logging.getLogger(__name__)

#: How long a failed message is hidden after its first delivery, its second one, and so on, unless the group
#: has a retry policy (Java: DefaultMQPushConsumerImpl.popDelayLevel).
POP_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
#: What is known of a group's settings is asked for again after this time.
POLICY_LIFE_S: Final = 30.0
#: Messages that are settled at a time.
MAX_SETTLING: Final = 64


class LeaseOutcomes(HandlerOutcomes[Lease]):
    """Acknowledges messages, hides failed ones until their next delivery, and moves dead letters."""

    def __init__(
        self,
        instance: Instance,
        group: str,
        options: PopOptions,
        popper: Popper,
        leases: Leases,
        send_back: SendBack,
        statistics: ConsumeStatistics,
        breaker: Breaker,
    ) -> None:
        super().__init__(instance, group, statistics, breaker)
        self._options = options
        self._popper = popper
        self._leases = leases
        self._send_back = send_back
        self._schedule = RetrySchedule(options.max_attempts)
        self._settling = anyio.CapacityLimiter(MAX_SETTLING)
        #: Whether the group has a retry policy, by broker, and when that was asked.
        self._policies: dict[str, tuple[bool, float]] = {}

    def finished(self, source: Lease, message: ReceivedMessage) -> None:
        source.finish(message)
        self._leases.finish(source)

    def returned(self, source: Lease, message: ReceivedMessage) -> None:
        self._leases.returned(source)

    async def _retry(self, source: Lease, message: ReceivedMessage, instruction: Exception) -> None:
        if isinstance(instruction, DeadLetter) or self._schedule.is_last(message.reconsume_times):
            await self._bury(source, instruction)
            return
        after_s = instruction.after if isinstance(instruction, Retry) else None
        try:
            async with self._settling:
                hidden_s = await self._hidden_s(source, message) if after_s is None else after_s
                await self._popper.change(source, round(hidden_s * 1000))
        except RmqError as error:
            log.warning("message %s comes again after its lease: %s", message.message_id, error)
        finally:
            self._leases.let_end(source)

    async def _bury(self, lease: Lease, why: Exception) -> None:
        """Move a message to the dead letters of the group. When that fails, it comes again after its lease;
        when cancelled, too."""
        message = lease.message
        try:
            async with self._settling:
                await self._send_back.send(message, DEAD_LETTER, why_dead(why))
        except RmqError as error:
            log.warning("message %s comes again after its lease: %s", message.message_id, error)
            self._leases.let_end(lease)
        except BaseException:
            self._leases.let_end(lease)
            raise
        else:
            self._leases.finish(lease)
            log_dead(self.group, message, why)

    async def _hidden_s(self, lease: Lease, message: ReceivedMessage) -> float:
        """How long a failed message is hidden by this client; a broker with a retry policy does it itself."""
        if self._options.ordered:
            return SUSPEND_S
        if await self._has_policy(lease.broker_name):
            return 0
        return POP_DELAYS_S[min(message.reconsume_times, len(POP_DELAYS_S) - 1)]

    async def _has_policy(self, broker_name: str) -> bool:
        known = self._policies.get(broker_name)
        now_s = self.backend.current_time()
        if known is not None and now_s - known[1] < POLICY_LIFE_S:
            return known[0]
        address = self._instance.routes.master(broker_name)
        found = False
        if address is not None:
            command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group=self.group))
            try:
                answered = await self._instance.call(address, command, f"asking for group {self.group!r}")
                config = answered.decode_body(SubscriptionGroupConfig)
                found = config.chosen_retry_policy is not None
            except (RmqError, DecodeError) as error:
                log.info("the retry policy of group %s is not known: %s", self.group, error)
        self._policies[broker_name] = found, now_s
        return found
