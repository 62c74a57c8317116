"""Where requests of some codes go: from a run of them to their processor and its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from rmqkit.plugin.request import JoinedProcessor, Outcome, Peer, RequestProcessor
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit.remoting.answers import mismatched
from rmqkit.remoting.hooks_by_code import HooksOfCode
from rmqkit.remoting.served import Served

#: A run of a connection that has this share of the most requests in a run gains little by being joined, and
#: its answers would have to wait.
_LONG_SHARE = 0.25


@frozen(eq=False)
class Route:
    """Where requests of some codes go: those with the same route that arrived together are a run of at most
    `max_run`. The first four are those of the processor; `joined` is None when its runs have one connection
    each. Runs with at most `max_part` requests may be joined."""

    process: Callable[[Sequence[Command], Peer], Sequence[Outcome]]
    joined: Callable[[Sequence[Command], Sequence[Peer]], Sequence[Outcome]] | None
    name: str
    max_run: int
    max_part: int
    hooks: HooksOfCode

    @staticmethod
    def to(processor: RequestProcessor, hooks: HooksOfCode) -> Route:
        joined, max_run, max_part = None, processor.max_run, 0
        if isinstance(processor, JoinedProcessor):
            joined, max_part = processor.process_joined, int(max_run * _LONG_SHARE)
        return Route(processor.process, joined, type(processor).__name__, max_run, max_part, hooks)

    def outcomes(self, requests: Sequence[Command], peers: Sequence[Peer]) -> Sequence[Outcome]:
        """One outcome for each request of a run, with the connection of each."""
        if not requests:
            return ()
        try:
            if self.joined is not None:
                outcomes = self.joined(requests, peers)
            else:
                outcomes = self.process(requests, peers[0])
        except Exception as error:  # noqa: BLE001 - whatever a processor raises must become an answer, never end the server
            return [error_answer(request, error) for request in requests]
        return outcomes if len(outcomes) == len(requests) else mismatched(outcomes, requests, self.name)

    def answer(
        self,
        peer: Served,
        run: Sequence[Command],
        refused: Mapping[int, Outcome] | None,
        outcomes: Sequence[Outcome],
    ) -> None:
        """Queue the answers to requests of one connection. `refused` are the outcomes of those that hooks
        refused by the ids of the requests, `outcomes` those of the others."""
        if refused:
            rest = iter(outcomes)
            outcomes = [refused[id(each)] if id(each) in refused else next(rest) for each in run]
        peer.queue(run, outcomes, self.hooks.after)
