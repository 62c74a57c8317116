"""Hooks around the requests that a server handles, and around those that go out from a client or a server
(behaviour sheet, C14): when they run, and their arguments.

They are plain functions that run in the loop: they must not block. Those of one kind run in `order`, then by
name. An exception of `RpcHook.before` or `CallHook.before_call` stops the request, so that a broken check
admits nothing; one of the others is logged with the name of its plugin and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import Answers, Caller, Peer
from rmqkit.protocol.command import Command


class RpcHook:
    """Runs around the requests that a server handles. Requests that arrived together and belong to the same
    processor are passed together, as a run.

    `codes` are the request codes that the hook handles, None for all. Requests that no hook handles cost
    nothing: leave SEND_MESSAGE_V2 out if possible. Nor do answers cost anything if only `before` is
    implemented. `servers` are the servers whose connections and requests the hook sees, as `Caller.server`
    names them; None means every server of the process that handles requests, and the replication port.
    """

    codes: frozenset[int] | None = None
    servers: frozenset[str] | None = None

    @property
    def sees_requests(self) -> bool:
        """Whether `before` does anything."""
        return type(self).before is not RpcHook.before

    @property
    def sees_answers(self) -> bool:
        """Whether `after` does anything."""
        return type(self).after is not RpcHook.after

    @property
    def patience_s(self) -> float:
        """How long a request waits, after it has arrived, before the hook sees it in `waited`; for ever
        unless a hook overrides it. It may change at any time."""
        return inf

    def connected(self, caller: Caller) -> None:
        """Called when a connection has been accepted and its handshake is complete. Raise RequestRefused to
        close it; any other exception closes it as well."""
        return

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        """Return the refused requests; later hooks and the processor do not see them. Raising refuses the
        whole run. RequestDelayed in place of a refusal passes the request on to the later hooks and the
        processor after that time."""
        return None

    def waited(self, requests: Sequence[Command], peer: Peer, waited_s: float) -> Refusals | None:
        """Return those of the requests that are refused because they have waited for so long, since they
        arrived, for other requests: they have not been processed, and neither `before` nor the processor sees
        them. Requests that are processed in the turn of the loop in which they arrive do not wait."""
        return None

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        """Observe requests whose answers are known, including refused ones; one answer for each. A run may be
        answered in several parts. One-way requests, and those of a connection that has ended, have no
        answer."""
        return


class EachRequestHook(RpcHook):
    """An RpcHook that processes one request at a time."""

    @property
    def sees_requests(self) -> bool:
        kind = type(self)
        is_same = kind.before is EachRequestHook.before
        return not (is_same and kind.before_each is EachRequestHook.before_each)

    @property
    def sees_answers(self) -> bool:
        kind = type(self)
        return kind.after is not EachRequestHook.after or kind.after_each is not EachRequestHook.after_each

    def before(self, requests: Sequence[Command], peer: Peer) -> Refusals | None:
        refused: dict[int, Exception] = {}
        for at, request in enumerate(requests):
            try:
                self.before_each(request, peer)
            except Exception as error:  # noqa: BLE001 - the runner distinguishes refusals from failures
                refused[at] = error
        return refused or None

    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        failure = None
        for request, answer in zip(requests, answers, strict=True):
            try:
                self.after_each(request, answer, peer)
            except Exception as error:  # noqa: BLE001 - the remaining answers must still be observed
                failure = failure or error
        if failure is not None:
            raise failure

    def before_each(self, request: Command, peer: Peer) -> None:
        """Raise RequestRefused to refuse the request."""
        return

    def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
        """Observe the answer to one request."""
        return


class CallHook:
    """Around each request that goes out, from a client or from a server to another one (Java: RPCHook on the
    client's side). Plain functions; must not block."""

    def before_call(self, request: Command, address: str) -> None:
        """May add header fields through `request.fields()`. An error is raised to the caller, and nothing is
        sent."""
        return

    def after_call(self, request: Command, response: Command, address: str) -> None:
        """Called with the answer, whatever its code; there is none for a one-way request or after a time-out.
        Errors are logged and ignored."""
        return
