"""Clocks for tests: which threads hold a clock that jumps."""

from __future__ import annotations

import threading

import trio
from trio.testing import MockClock

from rmqkit.testing.clock import threads_hold_the_clock


def test_a_thread_of_its_loop_holds_a_clock() -> None:
    """No time passes while it works, and the clock jumps afterwards."""

    async def main() -> None:
        began_s = trio.current_time()
        with threads_hold_the_clock(clock), trio.move_on_after(1):
            await trio.to_thread.run_sync(lambda: None)
            assert trio.current_time() == began_s
            await trio.sleep_forever()
        assert trio.current_time() == began_s + 1

    clock = MockClock(autojump_threshold=0)
    trio.run(main, clock=clock)


def test_the_loop_of_another_thread_holds_no_clock() -> None:
    """A broker in a thread of its own, which works in threads, stops the time of no test."""
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert over.wait(60)

    async def other() -> None:
        await trio.to_thread.run_sync(work)

    async def main() -> None:
        with threads_hold_the_clock(clock):
            beside = threading.Thread(target=trio.run, args=(other,))

            def start() -> None:
                beside.start()
                assert begun.wait(60)

            await trio.to_thread.run_sync(start)
            assert clock.autojump_threshold == 0
            await trio.sleep(3_600)
            over.set()
            await trio.to_thread.run_sync(beside.join)
            await trio.sleep(3_600)

    clock = MockClock(autojump_threshold=0)
    trio.run(main, clock=clock)
