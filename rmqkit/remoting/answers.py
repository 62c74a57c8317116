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
from rmqkit.protocol.connection import ConnectionCore
from rmqkit.protocol.error_answer import error_answer
from rmqkit.remoting.admission import Entries

#: The types of outcomes that are all bytes.
_ENCODED = {bytes}


def queue_answers(
    core: ConnectionCore, peer: Peer, requests: Sequence[Command], outcomes: Sequence[Outcome], hooks: Entries
) -> None:
    """Queue the answers to requests of a run, as many as there are outcomes, and show them to the hooks of
    these requests. One-way requests, which are in runs of their own, have no answer, and postponed ones not
    yet."""
    if not requests or requests[0].flag & FLAG_ONEWAY:
        return
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
        shown = Answers(answers)
        for entry in hooks:
            entry.tell("after", answered, shown, peer)


def _encoded(request: Command, outcome: object) -> tuple[Answer, Sequence[Buffer]]:
    """The answer that is sent, and its bytes: what cannot be encoded, for its size or a plugin's wrong types,
    becomes an error."""
    try:
        if isinstance(outcome, Reply):
            head = frame.frame_head(outcome.head, outcome.total_bytes)
            return outcome, (head, *outcome.slices)
        if not isinstance(outcome, Command):
            raise TypeError(f"{type(outcome).__name__} is no answer")
        answer, parts = outcome, frame.encode_parts(outcome)
    except Exception as error:  # noqa: BLE001 - see above
        answer = error_answer(request, error)
        parts = frame.encode_parts(answer)
    return answer, parts


def mismatched(outcomes: Sequence[Outcome], run: Sequence[Command], source: str) -> Sequence[Outcome]:
    """An error for each request, for outcomes of another number."""
    error = ValueError(f"{source} gave {len(outcomes)} outcomes for {len(run)} requests")
    return [error_answer(request, error) for request in run]


__all__ = ["mismatched", "queue_answers"]
