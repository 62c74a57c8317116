"""From outcomes to bytes: puts the answers to requests behind what a connection has to send, and shows them
to the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.request import Answer, Answers, Outcome, Peer, Reply, Ticket
from rmqkit.protocol import frame
from rmqkit.protocol.codes import FLAG_ONEWAY
from rmqkit.protocol.command import Command
from rmqkit.protocol.error_answer import error_answer
from rmqkit.remoting.admission import Entries
from rmqkit.remoting.served import Served

#: The types of outcomes that are all bytes.
_ENCODED = {bytes}


class FramedAnswers(Served):
    """A peer to which answers are sent as frames of remoting."""

    def queue(self, requests: Sequence[Command], outcomes: Sequence[Outcome], hooks: Entries) -> None:
        if not requests or requests[0].flag & FLAG_ONEWAY:
            return
        core = self.core
        if not hooks and {*map(type, outcomes)} == _ENCODED:
            core.outgoing += cast("Sequence[bytes]", outcomes)
            core.unsent_bytes += sum(map(len, cast("Sequence[bytes]", outcomes)))
            return
        parts: list[Buffer] = []
        answered: list[Command] = []
        answers: list[Answer] = []
        for request, outcome in zip(requests, outcomes):  # noqa: B905 - the callers have compared their numbers
            if type(outcome) is bytes:
                parts.append(outcome)
            elif outcome is None or isinstance(outcome, Ticket):
                continue
            else:
                outcome, found = _encoded(request, outcome)
                parts += found
            if hooks:
                answered.append(request)
                answers.append(outcome)
        core.outgoing += parts
        core.unsent_bytes += sum(map(len, parts))
        if answered:
            show(hooks, answered, answers, self)


def show(hooks: Entries, requests: Sequence[Command], answers: Sequence[Answer], peer: Peer) -> None:
    """Show answers to the hooks that want to see them."""
    shown = Answers(answers)
    for entry in hooks:
        entry.notify("after", requests, shown, peer)


def _encoded(request: Command, outcome: object) -> tuple[Answer, Sequence[Buffer]]:
    """The answer that is sent, and its bytes: what cannot be encoded, for its size or a plugin's wrong types,
    becomes an error."""
    try:
        if isinstance(outcome, Reply):
            head = frame.frame_head(outcome.head, outcome.total_bytes)
            return outcome, (head, *outcome.slices)
        if not isinstance(outcome, Command):
            raise TypeError(f"{type(outcome).__name__} is not an answer")
        answer, parts = outcome, frame.encode_parts(outcome)
    except Exception as error:  # noqa: BLE001 - see above
        answer = error_answer(request, error)
        parts = frame.encode_parts(answer)
    return answer, parts


def mismatched(outcomes: Sequence[Outcome], run: Sequence[Command], source: str) -> Sequence[Outcome]:
    """An error for each request, for outcomes of another number."""
    error = ValueError(f"{source} gave {len(outcomes)} outcomes for {len(run)} requests")
    return [error_answer(request, error) for request in run]


__all__ = ["FramedAnswers", "mismatched", "show"]
