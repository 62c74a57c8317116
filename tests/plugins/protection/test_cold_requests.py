"""Thresholds of cold reads by request, as mqadmin sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit_protection import cold_requests
from rmqkit_protection.cold_budget import ColdBudget
from rmqkit_protection.cold_reads import budget_of
from tests.broker.desk import BrokerHarness, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path) as found:
        yield found


async def shown(desk: BrokerHarness) -> dict[str, Any]:
    answer = await desk.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert answer.code == 0
    found: dict[str, Any] = json.loads(answer.body)
    return found


def budget(desk: BrokerHarness) -> ColdBudget:
    found = budget_of(desk.broker)
    assert found is not None
    return found


async def test_what_a_broker_shows(desk: BrokerHarness) -> None:
    """Java's names: what groups have read in this round, their thresholds, and those of all."""
    assert await shown(desk) == {
        "runtimeTable": {},
        "configTable": {},
        "cgColdReadThreshold": 3 << 20,
        "globalColdReadThreshold": 100 << 20,
        "globalAcc": 0,
    }
    budget(desk).add("g", 100, 5)
    budget(desk).add("g", 20, 7)
    budget(desk).adapted["g"] = 150
    found = await shown(desk)
    assert found["runtimeTable"] == {"g": {"coldAcc": 120, "createTimeMills": 5, "lastColdReadTimeMills": 7}}
    assert (found["configTable"], found["globalAcc"]) == ({"g||adaptive": 150}, 120)


async def test_thresholds_are_set_and_removed(desk: BrokerHarness) -> None:
    """Several at once; removing one that is not there changes nothing."""
    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    assert (await desk.ask(code, body=b"g=1000\nother=0\n")).code == 0
    assert (await shown(desk))["configTable"] == {"g": 1_000, "other": 0}
    for _ in range(2):
        assert (await desk.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"g")).code == 0
        assert (await shown(desk))["configTable"] == {"other": 0}


@pytest.mark.parametrize("text", ["much", "-1", "1.5", "", str(1 << 63)])
async def test_what_is_no_threshold_is_refused(desk: BrokerHarness, text: str) -> None:
    """With the group and the text; the others of the request are not set either."""
    body = f"other=5\ng={text}\n".encode()
    answer = await desk.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert f"of group g is a number of bytes, not '{text}'" in (answer.remark or "")
    assert not budget(desk).thresholds


async def test_groups_with_a_threshold_are_limited(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names come from afar; those that have one can be changed all the same."""
    monkeypatch.setattr(cold_requests, "MAX_GROUPS", 2)
    code = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    assert (await desk.ask(code, body=b"a=1\nb=2\n")).code == 0
    assert (await desk.ask(code, body=b"c=3\n")).code == ResponseCode.INVALID_PARAMETER
    assert (await desk.ask(code, body=b"b=4\n")).code == 0
    assert budget(desk).thresholds == {"a": 1, "b": 4}


async def test_a_broker_without_the_service_says_so(tmp_path: Path) -> None:
    """Nothing would come of a threshold."""
    async with open_desk(tmp_path, disabledServices="cold-reads") as desk:
        for code in cold_requests.CODES:
            answer = await desk.ask(code, body=b"g=1")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "'cold-reads' is switched off" in (answer.remark or "")
