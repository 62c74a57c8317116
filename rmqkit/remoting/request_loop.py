"""From requests to processors: runs of requests that arrived together, hooks around them, and an outcome for
each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from rmqkit.errors import RequestDelayed
from rmqkit.limits import MAX_REQUESTS_PER_TURN
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.frame import frames
from rmqkit.remoting.admission import Entries
from rmqkit.remoting.hooks_by_code import HooksByCode, HooksOfCode
from rmqkit.remoting.joined_run import JoinedRun, Part
from rmqkit.remoting.route import Route
from rmqkit.remoting.served import Served


class Router:
    """Request code -> processor; `default` takes the rest (Java: processorTable). `on_change` is called after
    each change of the table."""

    def __init__(
        self, processors: Mapping[int, RequestProcessor], default: RequestProcessor | None = None
    ) -> None:
        self.processors = {int(code): processor for code, processor in processors.items()}
        self.default = default if default is not None else NotSupported()
        self.on_change: list[Callable[[], None]] = []

    def change(self, processors: Mapping[int, RequestProcessor]) -> None:
        """Replace the processors of some codes."""
        self.processors.update(processors)
        for listener in self.on_change:
            listener()


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
    """Serves the requests of connections by a router, with hooks around them, and follows its changes."""

    def __init__(self, router: Router, hooks: HooksByCode) -> None:
        self._router = router
        self._hooks = hooks
        self._joined = JoinedRun()
        self._choose_routes()
        router.on_change.append(self._choose_routes)

    def close(self) -> None:
        """Follow the changes of the router no longer: its processors may outlive a server."""
        if self._choose_routes in self._router.on_change:
            self._router.on_change.remove(self._choose_routes)

    def _choose_routes(self) -> None:
        router, hooks = self._router, self._hooks
        routes: dict[tuple[int, HooksOfCode], Route] = {}

        def route(processor: RequestProcessor, hooks: HooksOfCode) -> Route:
            key = id(processor), hooks
            if key not in routes:
                routes[key] = Route.to(processor, hooks)
            return routes[key]

        self._default = route(router.default, hooks.for_all)
        self._routes = {
            code: route(router.processors.get(code, router.default), hooks.of(code))
            for code in {*router.processors, *hooks.by_code}
        }

    def handle(self, peer: Served, commands: Sequence[Command], at: int) -> int:
        """Run the processors for commands that arrived together, from number `at` on; answers are queued, or
        a task will queue them, or the end of the turn of the socket loop will queue and send those to the
        last run.

        Returns how far it came: not to the end when the peer is congested, or when MAX_REQUESTS_PER_TURN were
        processed.
        """
        find, default, core = self._routes.get, self._default, peer.core
        end = len(commands)
        if end - at > MAX_REQUESTS_PER_TURN:
            end = at + MAX_REQUESTS_PER_TURN
        while at < end:
            if not core.takes_requests:
                return len(commands)
            start, command = at, commands[at]
            flag = command.flag
            at += 1
            if flag & FLAG_RESPONSE:
                peer.respond(command)
                continue
            route = find(command.code, default)
            if at < end:
                limit = min(end, start + route.max_run)
                at = frames.alike(commands, start, limit)
                while at < limit and commands[at].flag == flag and find(commands[at].code, default) is route:
                    at = frames.alike(commands, at, limit)
            run = left = commands[start:at] if at - start < len(commands) else commands
            refused: Mapping[int, Outcome] | None = None
            if route.hooks.before:
                left, refused = self._admit(run, route.hooks.before, peer)
            if peer.loop_pass is not None and len(run) <= route.max_part and at == len(commands):
                self._joined.add(route, Part(peer, run, left, refused), peer.loop_pass)
            else:
                route.answer(peer, run, refused, route.outcomes(left, [peer] * len(left)))
            if at < end and core.congested:
                break
        return at

    def shed(self, peer: Served, commands: Sequence[Command], waited_s: float) -> Sequence[Command]:
        """Let hooks refuse those commands, none of which is processed yet, that have waited too long. Queues
        the answers to these, and returns the others."""
        left = commands
        for entry in self._hooks.impatient(waited_s):
            codes = entry.hook.codes
            asked = [
                command
                for command in left
                if not command.flag & FLAG_RESPONSE and (codes is None or command.code in codes)
            ]
            refusals = entry.refusals("waited", asked, peer, waited_s) if asked else {}
            for at, refusal in refusals.items():
                request = asked[at]
                outcomes = {id(request): error_answer(request, refusal)}
                self._routes.get(request.code, self._default).answer(peer, [request], outcomes, ())
            if refusals:
                gone = {id(asked[at]) for at in refusals}
                left = [command for command in left if id(command) not in gone]
        return left

    def _admit(
        self, run: Sequence[Command], hooks: Entries, peer: Served
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

    async def _process_later(self, delay_s: float, request: Command, hooks: Entries, peer: Served) -> Outcome:
        """Process a delayed request, after the hooks that have not seen it yet."""
        await trio.sleep(delay_s)
        left, refused = self._admit([request], hooks, peer)
        if not left:
            return refused[id(request)]
        (outcome,) = self._routes.get(request.code, self._default).process(left, peer)
        return outcome
