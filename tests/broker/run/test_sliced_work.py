"""Jobs in slices: order, size of slices, and failing jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing

from rmqkit.broker.run.sliced_work import SLICE_COST, SlicedWork


def job(name: str, costs: list[int], done: list[str]) -> Iterator[int]:
    for cost in costs:
        done.append(name)
        yield cost


def test_a_step_spends_one_slice() -> None:
    """A long job is interrupted once the slice is spent, and the next step goes on with it."""
    work, done = SlicedWork(), list[str]()
    work.add(job("long", [SLICE_COST // 4] * 10, done))
    assert done == []
    work.step()
    assert (len(done), work.busy) == (4, True)
    work.finish()
    assert (len(done), work.busy) == (10, False)


def test_jobs_take_turns() -> None:
    """After its slice a job waits until the others have had theirs; short jobs share one slice."""
    work, done = SlicedWork(), list[str]()
    work.add(job("long", [SLICE_COST] * 2, done))
    for name in ("a", "b"):
        work.add(job(name, [1], done))
    for _ in range(2):
        work.step()
    assert done == ["long", "a", "b", "long"]


def test_a_job_that_raises_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and the other jobs go on."""
    work, done = SlicedWork(), list[str]()

    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken")

    work.add(broken())
    work.add(job("good", [1], done))
    work.finish()
    assert done == ["good"]
    assert "background work failed" in caplog.text


async def test_a_running_worker_lets_others_run_between_slices() -> None:
    """It sleeps until there is a job, and after every slice other tasks have their turn."""
    work, done = SlicedWork(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.run)
        await trio.testing.wait_all_tasks_blocked()
        work.add(job("job", [SLICE_COST] * 5, done))
        while work.busy:
            before = len(done)
            await trio.lowlevel.checkpoint()
            # The two tasks run in any order within a turn.
            assert len(done) - before <= 2
        nursery.cancel_scope.cancel()
    assert len(done) == 5
