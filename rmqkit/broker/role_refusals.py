"""Requests that a broker refuses in a role other than MASTER.

A slave refuses sends and pulls before they are read (Java: rejectRequest of SendMessageProcessor and
PullMessageProcessor, with slaveReadEnable off), ends of transactions, recalls and resets of offsets, and
changes of topics and groups (AdminBrokerProcessor.validateSlave of 5.0; later versions accept them, and lose
them when the tables of the master arrive). It accepts commits of offsets and heartbeats, and answers every
query. A fenced broker refuses the changes; its sends are refused by the appender.

A slave or fenced member of an elected group was the master perhaps a moment ago: it refuses sends, pulls and
changes with SERVICE_NOT_AVAILABLE, after which clients look for the new master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rmqkit.broker.role import RoleState
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting.request_loop import Router

#: Answer code and remark.
Refusal = tuple[int, str | None]

_BUSY: Refusal = (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_ADMITTED_BY_MASTER = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    *_PULLS,
)
_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
_RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
_SLAVE: Final[dict[int, Refusal]] = {
    **dict.fromkeys(_ADMITTED_BY_MASTER, _BUSY),
    **dict.fromkeys(
        _CHANGES,
        (
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, please execute it from master"
            " broker.",
        ),
    ),
    _RESET: (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker"),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, None),
    RequestCode.RECALL_MESSAGE: (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "recall failed, broker service not available",
    ),
}
_FENCED: Mapping[int, Refusal] = dict.fromkeys(
    (*_CHANGES, _RESET),
    (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker is FENCED: another one may be the master, and its tables count",
    ),
)
#: In an elected group, instead of those of `_SLAVE`.
_ELECTED_SLAVE = _SLAVE | dict.fromkeys(
    (*_ADMITTED_BY_MASTER, *_CHANGES, _RESET),
    (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave, and another one was elected"),
)


def refusals(role: Role, epoch: int) -> Mapping[int, Refusal]:
    """What a broker refuses in a role, by request code; `epoch` is 0 without elections."""
    if role is Role.SLAVE:
        return _ELECTED_SLAVE if epoch else _SLAVE
    return _FENCED if role is Role.FENCED else {}


class _Refusing(EachRequest):
    """Answers every request with one refusal."""

    def __init__(self, refusal: Refusal) -> None:
        self._code, self._remark = refusal

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, self._code, self._remark)


class _RefusingReads(RequestProcessor):
    """Answers pulls with a refusal unless a slave may be read (slaveReadEnable)."""

    #: That of the processor of pulls.
    max_run = 1

    def __init__(self, refusal: Refusal, serving: RequestProcessor, may_read: Callable[[], bool]) -> None:
        self._refusing = _Refusing(refusal)
        self._serving = serving
        self._may_read = may_read

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        processor = self._serving if self._may_read() else self._refusing
        return processor.process(requests, peer)


def follow_role(role: RoleState, router: Router, may_read: Callable[[], bool] = lambda: False) -> None:
    """Replace the processors of refused requests in a router from now on, whenever the role changes. A master
    serves by the table as it is, and a slave serves pulls while `may_read`."""
    of_master = dict(router.processors)

    def refusing(code: int, refusal: Refusal) -> RequestProcessor:
        if code in _PULLS:
            return _RefusingReads(refusal, of_master[code], may_read)
        return _Refusing(refusal)

    def change() -> None:
        found = refusals(role.current, role.epoch)
        refused = {code: refusing(code, found[code]) for code in found.keys() & of_master.keys()}
        router.change(of_master | refused)

    role.on_change.append(change)
    change()
