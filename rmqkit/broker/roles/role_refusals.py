"""Requests that a broker refuses in a role other than MASTER.

A slave refuses sends and pulls before they are read (Java: rejectRequest of SendMessageProcessor and
PullMessageProcessor, with slaveReadEnable off), ends of transactions, recalls and resets of offsets, and
changes of topics and groups (AdminBrokerProcessor.validateSlave of 5.0; later versions accept them, and lose
them when the tables of the master arrive). It accepts commits of offsets and heartbeats, and answers every
query. A fenced broker refuses the changes; its sends are refused by the appender.

A slave or fenced member of an elected group was the master perhaps a moment ago: it refuses sends, pulls and
changes with SERVICE_NOT_AVAILABLE, after which clients look for the new master. A broker that does not know
what is confirmed refuses pulls, for the end of its log may be removed: a new master at first, and a fenced
one that has not been the master.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqkit.broker.roles.role import RoleState
from rmqkit.plugin.replication import ReplicaGroup
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.role import BrokerRole, Role
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.remoting.request_loop import Router

#: Answer code and remark.
Refusal = tuple[int, str | None]
PullRefusal = tuple[int, str]

_BUSY: PullRefusal = (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
_ELSEWHERE: PullRefusal = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker is a slave, and another one was elected",
)
_UNCONFIRMED: PullRefusal = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker does not know yet which of its messages are confirmed",
)
_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
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
    **dict.fromkeys(_SENDS, _BUSY),
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
_ELECTED_SLAVE = _SLAVE | dict.fromkeys((*_SENDS, *_CHANGES, _RESET), _ELSEWHERE)


def refusals(role: Role, epoch: int) -> Mapping[int, Refusal]:
    """What a broker refuses in a role, by request code, besides pulls; `epoch` is 0 without elections."""
    if role is Role.SLAVE:
        return _ELECTED_SLAVE if epoch else _SLAVE
    return _FENCED if role is Role.FENCED else {}


class _Refusing(EachRequest):
    """Answers every request with one refusal."""

    def __init__(self, refusal: Refusal) -> None:
        self._code, self._remark = refusal

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return answer(request, self._code, self._remark)


def pull_refusal(role: BrokerRole, group: ReplicaGroup | None, *, may_read_slave: bool) -> PullRefusal | None:
    """The reason why messages may not be read from this broker; None if they may. `group` is its elected
    group, `may_read_slave` is slaveReadEnable."""
    if role.current is Role.SLAVE and not may_read_slave:
        return _ELSEWHERE if group is not None else _BUSY
    return None if group is None or group.knows_confirmed else _UNCONFIRMED


def follow_role(role: RoleState, router: Router) -> None:
    """Replace the processors of refused requests in a router from now on, whenever the role changes. A master
    serves by the table as it is."""
    of_master = dict(router.processors)

    def change() -> None:
        found = refusals(role.current, role.epoch)
        refused = {code: _Refusing(found[code]) for code in found.keys() & of_master.keys()}
        router.change(of_master | refused)

    role.on_change.append(change)
    change()
