"""Contract of an acknowledgement condition as tests. Subclass `AckConditionContract` and define how the
condition is made and how the log passes it; pytest then runs the tests.

    class TestReplicas(AckConditionContract):
        @asynccontextmanager
        async def made(self) -> AsyncIterator[AckCondition]:
            yield Replicas()

        async def pass_to(self, condition: Replicas, offset: int) -> None:
            condition.acknowledged(offset)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.errors import RequestRefused
from rmqkit.plugin.acks import AckCondition, ConditionLost
from rmqkit.protocol.codes import ResponseCode

#: A condition has this long to be passed, after `pass_to`.
PATIENCE_S = 60


class AckConditionContract(ABC):
    """Tests of every condition."""

    @abstractmethod
    def made(self) -> Any:
        """An asynchronous context manager that returns a condition over a log that ends at offset 100 or
        later, of which nothing has passed the condition. The background work of the condition runs
        meanwhile."""

    async def pass_to(self, condition: Any, offset: int) -> None:
        """Let the log pass the condition up to an offset, at most 100; does nothing for a condition that a
        wait causes to be met."""
        await trio.lowlevel.checkpoint()

    async def lose(self, condition: Any) -> None:
        """Make the condition impossible to meet."""
        pytest.skip("this condition is not lost")

    async def passed(self, condition: AckCondition, offset: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(condition.wait_passed, offset)
            await trio.testing.wait_all_tasks_blocked()
            await self.pass_to(condition, offset)

    @asynccontextmanager
    async def patient(self) -> AsyncIterator[AckCondition]:
        with trio.fail_after(PATIENCE_S):
            async with self.made() as condition:
                yield condition

    # --- the rules ------------------------------------------------------------------------------------------

    async def test_what_it_says_of_itself(self) -> None:
        """A condition has a title, a time-out and an error code for it, and may refuse beforehand."""
        async with self.patient() as condition:
            assert condition.title
            assert condition.timeout_ms > 0
            assert condition.timeout_code != ResponseCode.SUCCESS
            assert condition.timeout_code in set(ResponseCode)
            refusal = condition.refusal()
            assert refusal is None or isinstance(refusal, RequestRefused)

    async def test_a_wait_ends_when_the_log_has_passed(self) -> None:
        """`wait_passed` returns once the position has reached its offset, and at once when it has already."""
        async with self.patient() as condition:
            for offset in (40, 100):
                await self.passed(condition, offset)
                assert condition.position.offset >= offset
                await condition.wait_passed(offset)
                await condition.wait_passed(1)

    async def test_followers_learn_of_it(self) -> None:
        """The followers of the position are called when it has moved."""
        async with self.patient() as condition:
            position, offsets = condition.position, list[int]()
            position.follow(lambda: offsets.append(position.offset))
            await self.passed(condition, 100)
            assert offsets == sorted(set(offsets))
            assert offsets[-1] >= 100
            assert condition.position.offset == position.offset

    async def test_all_that_wait_are_served(self) -> None:
        """Many tasks may wait for the same offset and for different ones."""
        async with self.patient() as condition:
            async with trio.open_nursery() as nursery:
                for offset in (100, 10, 50, 50, 100, 1):
                    nursery.start_soon(condition.wait_passed, offset)
                await trio.testing.wait_all_tasks_blocked()
                await self.pass_to(condition, 50)
                await self.pass_to(condition, 100)
            assert condition.position.offset >= 100

    async def test_a_cancelled_wait_leaves_the_others(self) -> None:
        """Cancelling one wait ends that one alone, and a later one succeeds."""
        async with self.patient() as condition:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(0):
                    await condition.wait_passed(100)
                nursery.start_soon(condition.wait_passed, 60)
                with trio.move_on_after(0):
                    await condition.wait_passed(60)
                await trio.testing.wait_all_tasks_blocked()
                await self.pass_to(condition, 60)
            await self.passed(condition, 100)

    async def test_a_loss_reaches_all_that_wait(self) -> None:
        """Tasks that wait when the condition is lost, and later, get ConditionLost with the code for the
        sender."""
        async with self.patient() as condition:

            async def wait() -> None:
                with pytest.raises(ConditionLost, match=r".") as lost:
                    await condition.wait_passed(100)
                assert lost.value.code in set(ResponseCode) - {ResponseCode.SUCCESS}

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                nursery.start_soon(wait)
                await self.lose(condition)
            await wait()
