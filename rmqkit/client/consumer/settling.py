"""What becomes of messages after their handlers (Java: ConsumeMessageConcurrentlyService,
ConsumeMessageOrderlyService; behaviour sheet, B8 and B12)."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup
from attrs import evolve

from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.breaker import Breaker
from rmqkit.client.consumer.delivery import DeadLetter, InHand, MessageOutcomes, Retry, S
from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.options import PushOptions
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.retry_schedule import DEAD_LETTER
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.consumer.statistics import ConsumeStatistics
from rmqkit.client.instance import Instance
from rmqkit.errors import RmqError
from rmqkit.model.dead_letter import ASKED, ATTEMPTS, Why

log = logging.getLogger(__name__)

#: Pause of an ordered queue or key after a failure, and the limits of a requested one.
SUSPEND_S = 1.0
SUSPEND_LIMITS_S = (0.01, 30.0)
#: When a message could not be sent back, it is handled here again after this time.
LOCAL_RETRY_S = 5.0
#: Messages that are sent back at a time.
MAX_SENDING = 64


class HandlerOutcomes(MessageOutcomes[S]):
    """What the outcomes of all messages have in common: they are measured, and failures are told apart and
    counted in a row. The subclasses say what becomes of the messages."""

    def __init__(
        self, instance: Instance, group: str, statistics: ConsumeStatistics, breaker: Breaker
    ) -> None:
        self.group = group
        self.backend = instance.backend
        self._instance = instance
        self._statistics = statistics
        self._breaker = breaker

    def check_usable(self) -> None:
        self._instance.check_usable()

    def measured(self, source: S, messages: int, began_s: float, *, ok: bool) -> None:
        now_s = source.consumed_s = self.backend.current_time()
        self._statistics.consumed(source.queue.topic, messages, now_s - began_s, now_s, ok=ok)
        if ok:
            self._breaker.succeeded()

    async def failed(self, in_hand: Sequence[InHand[S]], error: Exception) -> None:
        instruction = instruction_of(error)
        log_failure([message for _, message in in_hand], instruction)
        if self._breaker.failed(instruction):
            for source, message in in_hand:
                self.returned(source, message)
            return
        async with anyio.create_task_group() as group:
            for source, message in in_hand:
                group.start_soon(self._retry, source, message, instruction)

    @abstractmethod
    async def _retry(self, source: S, message: ReceivedMessage, instruction: Exception) -> None:
        """Have a failed message delivered again, or put it among the dead letters. Raises as
        `MessageOutcomes.failed`."""


class RetryPolicy(HandlerOutcomes[Assigned]):
    """Finishes messages, sends failed ones back, and repeats those of ordered queues in place. `tasks` runs
    the pauses until messages are given out again."""

    def __init__(
        self,
        group: str,
        options: PushOptions,
        send_back: SendBack,
        distributor: Distributor[Assigned],
        statistics: ConsumeStatistics,
        tasks: TaskGroup,
        instance: Instance,
        breaker: Breaker,
    ) -> None:
        super().__init__(instance, group, statistics, breaker)
        self._options = options
        self._schedule = options.schedule
        self._send_back = send_back
        self._distributor = distributor
        self._tasks = tasks
        self._sending = anyio.CapacityLimiter(MAX_SENDING)

    def finished(self, source: Assigned, message: ReceivedMessage) -> None:
        source.finish(message)
        self._distributor.offer(source)

    def returned(self, source: Assigned, message: ReceivedMessage) -> None:
        source.give_back(message)
        self._distributor.offer(source)

    async def _retry(self, source: Assigned, message: ReceivedMessage, instruction: Exception) -> None:
        if self._options.broadcast:
            self.finished(source, message)
            return
        after_s = instruction.after if isinstance(instruction, Retry) else None
        dead = isinstance(instruction, DeadLetter)
        level = DEAD_LETTER if dead else self._schedule.level(message.reconsume_times, after_s)
        if source.ordered and level != DEAD_LETTER:
            self._again(source, message, _clamped(SUSPEND_S if after_s is None else after_s))
            return
        try:
            async with self._sending:
                await self._send_back.send(message, level, why_dead(instruction))
        except RmqError as problem:
            log.warning(
                "message %s is handled here again in %s s: %s", message.message_id, LOCAL_RETRY_S, problem
            )
            self._again(source, message, LOCAL_RETRY_S)
        except BaseException:
            self.returned(source, message)
            raise
        else:
            self.finished(source, message)
            if level == DEAD_LETTER:
                log_dead(self.group, message, instruction)

    def _again(self, assigned: Assigned, message: ReceivedMessage, pause_s: float) -> None:
        """Handle the message again after a pause, and until then no other one of its lane."""
        changed = evolve(message, reconsume_times=message.reconsume_times + 1)
        assigned.messages.defer(changed)
        self._tasks.start_soon(self._pause, assigned, changed, pause_s)

    async def _pause(self, assigned: Assigned, message: ReceivedMessage, pause_s: float) -> None:
        await anyio.sleep(pause_s)
        assigned.messages.release(message)
        self._distributor.offer(assigned)


def log_failure(messages: Sequence[ReceivedMessage], error: Exception) -> None:
    """Log that a handler failed, or what it asked for."""
    first = messages[0]
    attempt = f"attempt {first.reconsume_times + 1} at message {first.message_id} of {first.topic}"
    if len(messages) > 1:
        attempt += f" and {len(messages) - 1} more of its batch"
    if isinstance(error, Retry):
        log.info("%s: %s", attempt, error)
    elif isinstance(error, DeadLetter):
        log.warning("%s: to the dead-letter topic: %s", attempt, error.why or "no reason given")
    else:
        log.warning("%s failed", attempt, exc_info=error)


def log_dead(group: str, message: ReceivedMessage, error: Exception) -> None:
    """Log that a message is a dead letter, and why."""
    log.warning(
        "message %s of %s is in the dead-letter topic of group %s after %d attempts: %s",
        message.message_id,
        message.topic,
        group,
        message.reconsume_times + 1,
        why_dead(error).error or "no reason given",
    )


def why_dead(error: Exception) -> Why:
    """What a dead letter says of the error of its handler."""
    if isinstance(error, DeadLetter):
        return Why(ASKED, error.why)
    return Why(ATTEMPTS, f"{type(error).__name__}: {error}")


def instruction_of(error: Exception) -> Exception:
    """The `DeadLetter` or `Retry` in an exception group, else the error."""
    if isinstance(error, ExceptionGroup):
        for kind in (DeadLetter, Retry):
            part: Exception | None = error.subgroup(kind)
            while isinstance(part, ExceptionGroup):
                part = part.exceptions[0]
            if part is not None:
                return part
    return error


def _clamped(pause_s: float) -> float:
    low, high = SUSPEND_LIMITS_S
    return min(max(pause_s, low), high)
