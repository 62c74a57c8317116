"""Thresholds of cold reads by request (wire-protocol sheet, section 3.7; Java:
AdminBrokerProcessor.getColdDataFlowCtrInfo, updateColdDataFlowCtrGroupConfig,
removeColdDataFlowCtrGroupConfig)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from rmqkit.config import parse_properties
from rmqkit.errors import RequestRefused
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit_protection.cold_budget import MAX_GROUPS, ColdBudget
from rmqkit_protection.cold_reads import ColdReads, budget_of

_log = logging.getLogger(__name__)
_MAX_THRESHOLD = (1 << 63) - 1
#: What Java's broker appends to a group whose threshold its strategy has set.
_ADAPTED = "||adaptive"
CODES = (
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
)


class ColdReadRequests(EachRequest):
    """Shows what was read, and sets and removes thresholds of groups until the broker ends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        budget = budget_of(self._broker)
        if budget is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker does not count reads of cold data: the service {ColdReads.name!r} is switched"
                " off",
            )
        if request.code == RequestCode.GET_COLD_DATA_FLOW_CTR_INFO:
            done = answer(request)
            done.body = msgspec.json.encode(_shown(budget))
            return done
        text = request.body.decode("utf-8", "replace")
        if request.code == RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG:
            budget.thresholds.pop(text, None)
            _log.info("group %r has no threshold of cold reads any more, says %s", text, peer.remote_text)
            return answer(request)
        wanted = _thresholds(parse_properties(text))
        if len(budget.thresholds.keys() | wanted.keys()) > MAX_GROUPS:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"more than {MAX_GROUPS} groups with a threshold of cold reads: remove some",
            )
        budget.thresholds.update(wanted)
        _log.info("thresholds of cold reads set by %s: %s", peer.remote_text, wanted)
        return answer(request)


def _thresholds(given: Mapping[str, str]) -> dict[str, int]:
    """Group -> bytes. Raises RequestRefused for what is not a number of bytes."""
    found: dict[str, int] = {}
    for group, text in given.items():
        try:
            found[group] = int(text)
        except ValueError:
            found[group] = -1
        if not 0 <= found[group] <= _MAX_THRESHOLD:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"the threshold of cold reads of group {group} is a number of bytes, not {text!r}",
            )
    return found


def _shown(budget: ColdBudget) -> dict[str, object]:
    return {
        "runtimeTable": {
            group: {
                "coldAcc": read.size_bytes,
                "createTimeMills": read.created_ms,
                "lastColdReadTimeMills": read.last_ms,
            }
            for group, read in budget.groups.items()
        },
        "configTable": budget.thresholds
        | {group + _ADAPTED: size_bytes for group, size_bytes in budget.adapted.items()},
        "cgColdReadThreshold": budget.settings.cg_cold_read_threshold,
        "globalColdReadThreshold": budget.settings.global_cold_read_threshold,
        "globalAcc": budget.total_bytes,
    }


__all__ = ["CODES", "ColdReadRequests"]
