"""Accepting connections, serving them, draining (Java: NettyRemotingServer)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from rmqkit.errors import ProtocolError, RequestRefused, first_error
from rmqkit.limits import IDLE_TIMEOUT_MS, MAX_CONNECTIONS
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.listen import start_work
from rmqkit.plugin.request import BROKER, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.transport import ServerStream
from rmqkit.remoting.admission import Admission, guarding
from rmqkit.remoting.hooks_by_code import HooksByCode
from rmqkit.remoting.other_protocols import PortProtocols
from rmqkit.remoting.peer import ServedPeer
from rmqkit.remoting.request_loop import RequestLoop, Router
from rmqkit.remoting.server_context import ServerContext
from rmqkit.remoting.waiting import WaitingRequests
from rmqkit.toolkit.descriptors import is_reserved, left_for_connections

_log = limited_logger(__name__)
_HOUSEKEEPING_MS = 10_000
#: While the server drains: time between two looks at what was sent, and how many in a row without progress
#: end a connection.
_STALL_CHECK_S = 0.25
_STALL_CHECKS = 4
REMOTING_ALONE = PortProtocols()


class RequestServer:
    """Serves a router on listeners.

    router          request code -> processor
    rpc_hooks       around the connections and requests that they want to see, in order
    kind            the server, as hooks name it (`Caller.server`)
    protocols       what connections may speak
    on_closed       called when a connection has ended, and for each further peer that it carried
    name            for log lines
    idle_timeout_s  a connection over which nothing moves for so long is closed
    waiting         where requests that wait are counted, also those of other servers
    """

    def __init__(
        self,
        router: Router,
        *,
        rpc_hooks: Iterable[RpcHook] = (),
        kind: str = BROKER,
        protocols: PortProtocols = REMOTING_ALONE,
        on_closed: Callable[[Peer], None] | None = None,
        name: str = "server",
        idle_timeout_s: float = IDLE_TIMEOUT_MS / 1000,
        waiting: WaitingRequests | None = None,
    ) -> None:
        self.peers: set[ServedPeer] = set()
        given = Hooks.of("rpc hook", rpc_hooks).checked(RpcHook, ("connected", "before", "waited", "after"))
        entries = guarding(given, kind)
        hooks = HooksByCode(entries)
        self._loop = RequestLoop(router, hooks)
        self.context = ServerContext(
            name,
            kind,
            Admission(entries),
            hooks,
            self._loop.handle,
            self._loop.shed,
            WaitingRequests() if waiting is None else waiting,
            protocols,
            on_closed,
        )
        self._name = name
        self._idle_timeout_s = idle_timeout_s
        self._accepting = trio.CancelScope()
        self._draining = False
        #: When a lack of file descriptors was last reported; under load there would be a line for each
        #: connection.
        self._short_said = -math.inf
        self._empty = trio.Event()

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[ServerStream]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until cancelled or drained, once. Cancelled: connections are cut."""
        try:
            await self._serve(listeners, task_status)
        finally:
            self._loop.close()

    async def _serve(
        self, listeners: Sequence[trio.abc.Listener[ServerStream]], task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._housekeeping)
            nursery.start_soon(self.context.turns.run)
            nursery.start_soon(self.context.leaving.run)
            nursery.start_soon(self.context.unfinished.run, self.context.close_unfinished)
            start_work(listeners, nursery)
            with self._accepting:
                # It closes the listeners when it ends.
                async with trio.open_nursery() as accepting:
                    await accepting.start(
                        partial(
                            trio.serve_listeners, self._connection, list(listeners), handler_nursery=nursery
                        )
                    )
                    task_status.started()
            while self.peers:
                await self._empty.wait()
            nursery.cancel_scope.cancel()

    async def drain(self, timeout_ms: int) -> None:
        """Stop accepting and reading, answer what is in flight, close. Peers that read get all their answers;
        one that takes nothing for about a second is cut off. After the time-out the rest is cut."""
        self._draining = True
        self._accepting.cancel()
        for peer in list(self.peers):
            peer.drain()
        with trio.move_on_after(timeout_ms / 1000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cut_off_stalled)
                while self.peers:
                    await self._empty.wait()
                nursery.cancel_scope.cancel()
        for peer in list(self.peers):
            peer.close()

    async def _cut_off_stalled(self) -> None:
        """Close connections whose peers do not read what is being sent, until cancelled. Several checks in a
        row count, not the time alone, so that a process that was stopped gives its peers another second."""
        stalled: dict[ServedPeer, tuple[float, int, int]] = {}
        while True:
            await trio.sleep(_STALL_CHECK_S)
            for peer in list(self.peers):
                core = peer.core
                sent_at, unsent_bytes, checks = stalled.get(peer, (core.sent_at, core.unsent_bytes, 0))
                if not unsent_bytes or (sent_at, unsent_bytes) != (core.sent_at, core.unsent_bytes):
                    checks = 0
                stalled[peer] = core.sent_at, core.unsent_bytes, checks + 1
                if checks >= _STALL_CHECKS and not peer.closed:
                    _log.warning(
                        "%s: %s does not read its answers, %s bytes are dropped",
                        self._name,
                        peer.remote_text,
                        core.unsent_bytes,
                    )
                    peer.close()

    async def _connection(self, stream: ServerStream) -> None:
        if self._draining:
            await trio.aclose_forcefully(stream)
            return
        if len(self.peers) >= MAX_CONNECTIONS:
            _log.warning(
                "%s: more than %s connections, one from %s refused",
                self._name,
                MAX_CONNECTIONS,
                stream.remote[0],
            )
            await trio.aclose_forcefully(stream)
            return
        if is_reserved(stream.fileno()) or not left_for_connections():
            now = trio.current_time()
            if now >= self._short_said + _HOUSEKEEPING_MS / 1000:
                self._short_said = now
                _log.warning(
                    "%s: connections are refused, for the file descriptors left are kept for the store; there"
                    " are %s connections: close some, or allow more open files (ulimit -n)",
                    self._name,
                    len(self.peers),
                )
            await trio.aclose_forcefully(stream)
            return
        peer, protocols = ServedPeer(stream, self.context), self.context.protocols
        self.peers.add(peer)
        try:
            await peer.run()
        except* RequestRefused as group:
            _log.warning(
                "%s: connection from %s refused: %s", self._name, peer.remote_text, first_error(group)
            )
        except* ProtocolError as group:
            _log.warning(
                "%s: %s broke the protocol, connection closed: %s%s",
                self._name,
                peer.remote_text,
                first_error(group),
                "" if protocols.is_remoting else f"; this port takes {protocols.names}",
            )
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            _log.debug("%s: connection from %s lost: %s", self._name, peer.remote_text, first_error(group))
        except* Exception as group:  # noqa: BLE001 - one connection's trouble must not reach the others
            _log.error(
                "%s: connection from %s failed and was closed",
                self._name,
                peer.remote_text,
                exc_info=first_error(group),
            )
        finally:
            self.peers.discard(peer)
            self.context.unfinished.forget(peer)
            if not self.peers:
                event, self._empty = self._empty, trio.Event()
                event.set()
            if self.context.on_closed is not None:
                self.context.on_closed(peer)

    async def _housekeeping(self) -> None:
        """Close connections over which nothing has moved for so long (Java: IdleStateHandler)."""
        while True:
            await trio.sleep(_HOUSEKEEPING_MS / 1000)
            limit = trio.current_time() - self._idle_timeout_s
            for peer in [peer for peer in self.peers if peer.core.last_moved < limit]:
                _log.info(
                    "%s: connection from %s idle for %s s, closed",
                    self._name,
                    peer.remote_text,
                    int(self._idle_timeout_s),
                )
                peer.close()
                await self.context.leaving.wait()
