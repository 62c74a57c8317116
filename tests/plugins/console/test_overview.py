"""The overview and the page of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import Admin, Client, ConnectFailed
from rmqkit.model.replication import MasterStatus, ReplicationStatus, SlaveStatus
from rmqkit.testing.broker import running_namesrv
from rmqkit_console.samples import Lag, Rates, Sample
from tests.plugins.console.asking import NOW_MS, asking, console_of, http_of


async def test_the_brokers_of_a_cluster(tmp_path: Path) -> None:
    """Each is shown with its role, its address and its rates, in HTML and in JSON."""
    async with asking(tmp_path) as ask:
        await ask.console.samples.take()
        await ask.console.samples.take()
        address = str(ask.cluster.broker.address)
        html = await ask.page("/")
        assert "broker-a" in html
        assert "<polyline" in html
        values = await ask.values("/")
        (broker,) = values["brokers"]
        assert (broker["broker"], broker["number"], broker["answers"]) == ("broker-a", 0, True)
        assert broker["cluster"] == "DefaultCluster"
        assert broker["logBytes"] == 0
        assert broker["slaves"] == []
        assert address.endswith(broker["address"])
        assert values["faults"] == []
        assert [plot["title"] for plot in values["plots"]] == [
            "Messages stored per second",
            "Messages fetched per second",
            "Disk used",
        ]
        assert {plot["lines"][0]["name"] for plot in values["plots"]} == {"broker-a"}
        assert values["plots"][2]["ticks"][2][1] == 1


async def test_plots_of_lags(tmp_path: Path) -> None:
    """The groups that are furthest behind are shown in messages and in time, and slaves in bytes."""
    async with asking(tmp_path) as ask:
        rates, lags = (
            {"broker-a": Rates(1, 1, 0.5)},
            {f"G{number}": Lag(number, 90_000) for number in range(9)},
        )
        ask.console.samples.keep(Sample(NOW_MS, rates, {"broker-a 10.0.0.2:5": 2_048}, lags))
        plots = {each["title"]: each for each in (await ask.values("/"))["plots"]}
        assert [each["name"] for each in plots["Replicas behind"]["lines"]] == ["broker-a 10.0.0.2:5"]
        shown = {each["name"] for each in plots["Messages not consumed"]["lines"]}
        assert shown == {"G3", "G4", "G5", "G6", "G7", "G8"}
        html = await ask.page("/")
        for text in ("G8: 8", "G8: 1m 30s", "broker-a: 50%", "10.0.0.2:5: 2.0 KiB"):
            assert text in html


async def test_a_page_that_loads_itself(tmp_path: Path) -> None:
    """It does so only when asked, by an element that needs no script."""
    async with asking(tmp_path) as ask:
        assert "http-equiv" not in await ask.page("/")
        assert '<meta http-equiv="refresh" content="10">' in await ask.page("/", refresh=10)
        assert "give a number from 0 to 3600" in await ask.page("/", 400, refresh="x")


async def test_a_cluster_without_brokers(tmp_path: Path) -> None:
    """The page says that none is registered."""
    async with (
        running_namesrv(tmp_path, scheme="tcp") as namesrv,
        Client(str(namesrv)) as client,
        console_of(client) as console,
        http_of(console) as http,
    ):
        await console.samples.take()
        answer = await http.get("/")
    assert answer.status_code == 200
    assert "No broker is registered with" in answer.text
    assert "No samples yet." in answer.text


async def test_a_cluster_that_does_not_answer() -> None:
    """The page says why; its status is that of a gateway."""
    async with (
        Client("127.0.0.1:1", connect_timeout_ms=100) as client,
        console_of(client) as console,
        http_of(console) as http,
    ):
        await console.samples.take()
        answer = await http.get("/")
        as_json = await http.get("/", headers={"accept": "application/json"})
    assert answer.status_code == as_json.status_code == 502
    assert "127.0.0.1:1" in answer.text
    assert "127.0.0.1:1" in as_json.json()["error"]
    assert [sample.rates for sample in console.samples.kept] == [{}]


async def test_one_broker(tmp_path: Path) -> None:
    """Its figures are those of its run-time table. An address that is none of the cluster's is not asked."""
    async with asking(tmp_path) as ask:
        address = (await ask.values("/"))["brokers"][0]["address"]
        html = await ask.page("/broker", address=address)
        assert "Broker broker-a" in html
        values = await ask.values("/broker", address=address)
        assert values["runtime"]["commitLogMaxOffset"] == "0"
        assert {each["name"] for each in values["dispatchers"]} >= {"consume-queue", "index"}
        assert "no broker of this cluster" in await ask.page("/broker", 400, address="127.0.0.1:1")
        assert "address is missing" in await ask.page("/broker", 400)


async def test_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master is shown with its slaves, a slave with its master."""
    slave = SlaveStatus(addr="10.0.0.2:5", slave_ack_offset=7, diff=2_048, in_sync=True, lag_ms=1_500)
    told = [
        ReplicationStatus(in_sync_slave_nums=1, ha_connection_info=[slave, SlaveStatus(addr="10.0.0.3:5")]),
        ReplicationStatus(
            master=False, ha_client_runtime_info=MasterStatus(master_addr="10.0.0.1:9", max_offset=9)
        ),
    ]

    async def replication(admin: Admin, address: str) -> ReplicationStatus:
        return told[0]

    monkeypatch.setattr(Admin, "replication", replication)
    async with asking(tmp_path) as ask:
        (broker,) = (await ask.values("/"))["brokers"]
        assert "1 of 2 in sync" in await ask.page("/")
        html = await ask.page("/broker", address=broker["address"])
        assert "10.0.0.2:5" in html
        assert "2.0 KiB" in html
        assert "1.5s" in html
        told.pop(0)
        assert "10.0.0.1:9, up to offset 9" in await ask.page("/broker", address=broker["address"])


async def test_a_broker_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the list, and the page says why it has no figures."""

    async def runtime_info(admin: Admin, address: str) -> dict[str, str]:
        raise ConnectFailed(address, "refused")

    monkeypatch.setattr(Admin, "runtime_info", runtime_info)
    async with asking(tmp_path) as ask:
        html = await ask.page("/")
        assert "does not answer" in html
        assert "refused" in html
        (broker,) = (await ask.values("/"))["brokers"]
        assert (broker["broker"], broker["answers"]) == ("broker-a", False)
