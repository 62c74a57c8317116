"""A replica group with etcd under kills, suspensions and cuts (tests.faults.failover contains the runs)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.failover import NETWORKS, survive
from tests.faults.network import Network, refusal
from tests.plugins.failover import etcd


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    if request.param == "namespaces" and (reason := refusal()):
        pytest.skip(reason)
    return NETWORKS[request.param]()


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
async def test_no_acknowledged_message_is_lost_when_masters_fail(tmp_path: Path, network: Network) -> None:
    """Every message that was answered with SEND_OK is in the three logs, which are equal; producers find each
    new master by the name server."""
    group = await survive(tmp_path, seed=288, rounds=3, network=network)
    assert group.done == ["suspend_master", "cut_what_the_master_sends", "cut_master"]
    assert len(group.epochs) >= 3
    assert len(group.acknowledged) > 20
