"""Serves sockets between two passes of trio's loop, without a task for each request.

A task that waits for its socket costs a change of trio's epoll set, a schedule and a pass of the loop for
each read, which is several times the cost of the system calls. Here all sockets of the servers are registered
in one level-triggered epoll, and so is trio's own. Where trio would wait for events, `SocketLoop` waits
instead: it calls back for each ready socket, and returns to trio as soon as trio has an event, a deadline or
a runnable task.

Sockets whose peers have ended are served after the others, a few per turn: when thousands of clients end at
once, a request of another one does not wait behind all of them in epoll's list.

The epoll descriptor of trio is not part of its public interface. Where it cannot be found (another system,
another version, a guest of another loop), `socket_loop` returns None and connections read in their own tasks.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection
from itertools import islice
from math import inf
from typing import Any

import trio
from attrs import frozen

#: Ready sockets that are served before trio's own events are looked at again, those whose peers have ended
#: among them, and how many of these are sorted out.
_SERVED_PER_TURN = 64
_ENDED_PER_TURN = 8
_FOUND_PER_TURN = 1_024
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP
_ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@frozen(eq=False)
class TrioEvents:
    """What is used of the running trio besides its public interface.

    runnable   its runnable tasks, a collection that stays the same
    epoll      the descriptor of its epoll
    interrupt  makes its next wait return at once
    for_idle   whether the time-out of its wait means that nothing happens: tasks wait for that, or a clock
               of tests jumps then
    """

    runnable: Collection[object]
    epoll: int
    interrupt: Callable[[], None]
    for_idle: Callable[[], bool]


def trio_events() -> TrioEvents | None:
    """None where trio is a guest, or does not wait with epoll."""
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT

        runner = GLOBAL_RUN_CONTEXT.runner
        manager: Any = runner.io_manager

        def for_idle() -> bool:
            return bool(runner.waiting_for_idle) or runner.clock_autojump_threshold < inf

        for_idle()
        if runner.is_guest:
            return None
        return TrioEvents(runner.runq, manager._epoll.fileno(), manager.force_wakeup, for_idle)
    except (ImportError, AttributeError):
        return None


class SocketLoop(trio.abc.Instrument):
    """The watched sockets of one run of trio. Callbacks run outside of tasks: they may start tasks, set
    events and cancel, and may not raise."""

    def __init__(self, events: TrioEvents) -> None:
        self._events = events
        self._epoll = select.epoll()
        self._epoll.register(events.epoll, select.EPOLLIN)
        self._ready: dict[int, Callable[[], None]] = {}
        #: Descriptors whose peers have ended, which are not in the epoll.
        self._ended: dict[int, None] = {}
        self._at_end: list[Callable[[], None]] = []
        #: Whether several sockets are ready in this turn.
        self.is_shared = False
        self._now = trio.lowlevel.current_clock().current_time

    def watch(self, descriptor: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever the descriptor has something to read, or its peer has ended, until `forget`.
        Raises OSError."""
        self._epoll.register(descriptor, _EVENTS)
        self._ready[descriptor] = ready

    def forget(self, descriptor: int) -> None:
        """End `watch`, before the descriptor is closed. A descriptor that is not watched is ignored."""
        if self._ready.pop(descriptor, None) is None:
            return
        if descriptor in self._ended:
            del self._ended[descriptor]
        else:
            self._epoll.unregister(descriptor)

    def at_end(self, then: Callable[[], None]) -> None:
        """Call back once when all sockets that are ready together have been served, and all tasks have run
        that could run before them. Called while a socket is served, or by a task."""
        self._at_end.append(then)

    def before_io_wait(self, timeout: float) -> None:
        """Serve ready sockets; when trio has nothing else to do, wait for them in its place."""
        if self._at_end:
            # Tasks of this pass have joined their requests.
            self._serve(0)
            if timeout > 0:
                self._events.interrupt()
            return
        if not self._ready:
            return
        if timeout <= 0:
            self._serve(0)
            return
        if self._ended:
            self._serve(0)
            self._events.interrupt()
            return
        events, now = self._events, self._now
        end, left_s, served = now() + timeout, timeout, False
        while left_s > 0 and not (events.runnable or self._ended) and self._ready:
            ready, of_trio = self._serve(left_s)
            if of_trio:
                # The wait of trio returns at once.
                return
            if not ready and not served and events.for_idle():
                return
            served = True
            left_s = end - now() if ready else 0
        # Trio would wait for the whole time-out again.
        events.interrupt()

    def _serve(self, timeout: float) -> tuple[int, bool]:
        """Wait and call back. Returns the number of ready sockets, and whether trio has events."""
        found = self._epoll.poll(timeout, _FOUND_PER_TURN)
        find, trio_epoll, of_trio = self._ready.get, self._events.epoll, False
        self.is_shared = len(found) > 1
        served = 0
        for descriptor, event in found:
            if descriptor == trio_epoll:
                of_trio = True
            elif event & _ENDED:
                if descriptor in self._ready:
                    self._epoll.unregister(descriptor)
                    self._ended[descriptor] = None
            elif served < _SERVED_PER_TURN and (ready := find(descriptor)) is not None:
                served += 1
                ready()
        if self._ended:
            self._serve_ended()
        if self._at_end:
            callbacks, self._at_end = self._at_end, []
            for then in callbacks:
                then()
        return len(found), of_trio

    def _serve_ended(self) -> None:
        """Call back for a few sockets whose peers have ended; one that is still watched afterwards has more
        to read."""
        for descriptor in list(islice(self._ended, _ENDED_PER_TURN)):
            ready = self._ready.get(descriptor)
            if ready is not None and descriptor in self._ended:
                ready()
            if descriptor in self._ended:
                del self._ended[descriptor]
                self._epoll.register(descriptor, _EVENTS)

    def after_run(self) -> None:
        """Close the epoll with the run."""
        self._epoll.close()


_loops: trio.lowlevel.RunVar[SocketLoop | None] = trio.lowlevel.RunVar("socket_loop")


def socket_loop() -> SocketLoop | None:
    """The loop of this run of trio, None where there is none."""
    try:
        return _loops.get()
    except LookupError:
        events = trio_events()
        loop = SocketLoop(events) if events is not None else None
        if loop is not None:
            trio.lowlevel.add_instrument(loop)
        _loops.set(loop)
        return loop
