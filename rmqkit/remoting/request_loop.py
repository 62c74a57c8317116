"""From requests to processors: runs of requests that arrived together, hooks around them, and an outcome for
each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from rmqkit.errors import RequestDelayed
from rmqkit.limits import MAX_REQUESTS_PER_TURN
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.remoting.hooks_by_code import Entries, HooksByCode
from rmqkit.remoting.peer import ServedPeer, mismatched


class Router:
    """Request code -> processor; `default` takes the rest (Java: processorTable)."""

    def __init__(
        self, processors: Mapping[int, RequestProcessor], default: RequestProcessor | None = None
    ) -> None:
        self.processors = {int(code): processor for code, processor in processors.items()}
        self.default = default if default is not None else NotSupported()


class NotSupported(EachRequest):
    """Answers every request with REQUEST_CODE_NOT_SUPPORTED."""

    def handle(self, request: Command, peer: Peer) -> Outcome:
        try:
            name = f" ({RequestCode(request.code).name})"
        except ValueError:
            name = ""
        return answer(
            request,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request code {request.code}{name} is not supported here",
        )


class RequestLoop:
    """Serves the requests of connections by a router, with hooks around them."""

    def __init__(self, router: Router, hooks: HooksByCode) -> None:
        self._router = router
        self._hooks = hooks

    def handle(self, peer: ServedPeer, commands: Sequence[Command], at: int) -> int:
        """Run the processors for commands that arrived together, from number `at` on; answers are queued, or
        a task will queue them.

        Returns how far it came: not to the end when the peer is congested, or when MAX_REQUESTS_PER_TURN were
        processed.
        """
        find, default = self._router.processors.get, self._router.default
        hooks_of, for_all = self._hooks.by_code.get, self._hooks.for_all
        end = len(commands)
        if end - at > MAX_REQUESTS_PER_TURN:
            end = at + MAX_REQUESTS_PER_TURN
        core = peer.core
        while at < end:
            if not core.takes_requests:
                return len(commands)
            command = commands[at]
            if command.flag & FLAG_RESPONSE:
                peer.respond(command)
                at += 1
                continue
            start, code = at, command.code
            processor, hooks = find(code, default), hooks_of(code, for_all)
            limit = end if end - start <= processor.max_run else start + processor.max_run
            at += 1
            while at < limit:
                follower = commands[at]
                if follower.flag & FLAG_RESPONSE or find(follower.code, default) is not processor:
                    break
                if follower.code != code and hooks_of(follower.code, for_all) != hooks:
                    break
                at += 1
            run = commands[start:at] if at - start < len(commands) else commands
            left, refused = self._admit(run, hooks, peer) if hooks else (run, None)
            try:
                outcomes = processor.process(left, peer) if left else ()
            except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer, never end the server
                outcomes = [error_answer(request, error) for request in left]
            if len(outcomes) != len(left):
                outcomes = mismatched(outcomes, left, type(processor).__name__)
            if refused:
                rest = iter(outcomes)
                outcomes = [refused[id(each)] if id(each) in refused else next(rest) for each in run]
            peer.finish(run, outcomes, hooks)
            if at < end and core.congested:
                break
        return at

    def _admit(
        self, run: Sequence[Command], hooks: Entries, peer: ServedPeer
    ) -> tuple[Sequence[Command], dict[int, Outcome]]:
        """The requests of a run that are processed now, and the outcomes of the others by the ids of
        these."""
        refused: dict[int, Outcome] = {}
        left = run
        for number, entry in enumerate(hooks, 1):
            refusals = entry.refusals("before", left, peer)
            if refusals:
                for at, refusal in refusals.items():
                    request = left[at]
                    if isinstance(refusal, RequestDelayed):
                        later = partial(self._process_later, refusal.delay_s, request, hooks[number:], peer)
                        refused[id(request)] = peer.answer_async(request, later)
                    else:
                        refused[id(request)] = error_answer(request, refusal)
                left = [request for at, request in enumerate(left) if at not in refusals]
                if not left:
                    break
        return left, refused

    async def _process_later(
        self, delay_s: float, request: Command, hooks: Entries, peer: ServedPeer
    ) -> Outcome:
        """Process a delayed request, after the hooks that have not seen it yet."""
        await trio.sleep(delay_s)
        left, refused = self._admit([request], hooks, peer)
        if not left:
            return refused[id(request)]
        processor = self._router.processors.get(request.code, self._router.default)
        (outcome,) = processor.process(left, peer)
        return outcome
