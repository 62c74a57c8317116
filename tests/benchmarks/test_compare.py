"""A small comparison with real servers, and the checks around a load."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, measuring, peers
from benchmarks.scenarios import SCENARIOS, Plan

TINY = [
    "--rounds",
    "1",
    "--seconds",
    "0.1",
    "--warm-up",
    "0.1",
    "--rest",
    "0.05",
    "--pull-messages",
    "300",
    "--passes",
    "2",
]
TINY += ["--backlog-mb", "1", "--backlog-rate", "500", "--size", "256"]
PLAN = Plan(1.0, 1.0, 100, 2, 100, 1, 100.0, 1.0, 0.1)


def server(tmp_path: Path) -> peers.Server:
    return peers.Server("rmqkit", "127.0.0.1:1", "127.0.0.1:2", tmp_path)


def test_every_scenario_runs_and_the_result_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All loads run without an error on rmqkit under both flush settings; the read messages are the stored
    ones; the data is deleted afterwards."""
    monkeypatch.setattr(compare, "RESULTS", tmp_path / "results")
    (tmp_path / "data").mkdir()
    arguments = [*TINY, "--servers", "rmqkit", "--data", str(tmp_path / "data"), "--name", "tiny"]
    status = compare.main(arguments)
    said = capsys.readouterr()
    assert status == 0, said.err
    result = json.loads((tmp_path / "results" / "tiny.json").read_text())
    (found,) = result["rounds"]
    assert list(result["summary"]["scenarios"]) == list(SCENARIOS) == list(result["loads"])
    assert set(found["scenarios"]) == set(SCENARIOS)
    assert {name: report["errors"] for name, report in found["scenarios"].items()} == dict.fromkeys(
        SCENARIOS, 0
    )
    assert all(
        report["messages"] > 0 and report["generator_cpu_us_per_message"] > 0
        for report in found["scenarios"].values()
    )
    assert found["scenarios"]["pull"]["messages"] == 2 * 301
    assert found["scenarios"]["backlog"]["reader"]["messages"] >= 10**6 // 256
    assert 0 <= found["scenarios"]["backlog"]["resident_before"] <= 1
    assert result["loads"]["sync"]["settings"] == {"flushDiskType": "SYNC_FLUSH"}
    assert all(SCENARIOS[name].title in said.out for name in SCENARIOS if name != "backlog")
    assert list((tmp_path / "data").iterdir()) == []


def test_servers_take_turns_and_the_other_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers alternate load by load, in the opposite order in the next round; scenarios with their own
    settings have their own servers."""
    events: list[str] = []

    class Fake(peers.Server):
        def paused(self) -> AbstractContextManager[None]:  # type: ignore[override]
            events.append(f"stop {self.name}")
            return nullcontext()

        def broker_rss_mb(self) -> float:
            return 0.0

    def running(
        name: str, settings: dict[str, str], _parent: Path | None
    ) -> AbstractContextManager[peers.Server]:
        events.append(f"start {name} {settings.get('flushDiskType', '')}".strip())
        return nullcontext(Fake(name, "", "", tmp_path))

    def warm(_server: peers.Server, chosen: list[str], _plan: Plan) -> tuple[int, dict[str, range]]:
        return 0, dict.fromkeys(chosen, range(1))

    def measured(one: peers.Server, name: str, _plan: Plan, _stored: range) -> dict[str, Any]:
        events.append(f"{one.name} {name}")
        return {"messages_per_s": 1.0, "latency_ms": {}, "errors": 0, "first_errors": []}

    monkeypatch.setattr(peers, "running", running)
    for name, fake in (("warm_up", warm), ("measure", measured), ("rest", lambda *_: None)):
        monkeypatch.setattr(compare, name, fake)
    rounds = compare.run_rounds(2, ["a", "b"], ["window", "sync", "pull"], {}, PLAN, None)
    assert [(entry["round"], entry["server"], sorted(entry["scenarios"])) for entry in rounds] == [
        (number, name, ["pull", "sync", "window"]) for number in (1, 2) for name in "ab"
    ]
    loads = [event for event in events if event[:2] in ("a ", "b ")]
    assert loads == [
        f"{name} {load}" for order in ("ab", "ba") for load in ("window", "pull", "sync") for name in order
    ]
    assert [event for event in events if event.startswith("start")] == [
        f"start {name}{flush}" for order in ("ab", "ba") for flush in ("", " SYNC_FLUSH") for name in order
    ]
    for one, other in (("a", "b"), ("b", "a")):
        assert all(
            events[index - 1] == f"stop {other}"
            for index, event in enumerate(events)
            if event in loads and event[0] == one
        )


@pytest.mark.parametrize(
    ("name", "read", "errors"), [("pull", 600, 0), ("pull", 602, 1), ("backlog", 300, 0), ("backlog", 299, 1)]
)
def test_what_is_read_must_be_what_was_stored(
    name: str, read: int, errors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 messages were stored, and `pull` reads them twice."""
    reader = {"messages": read, "whole": True}
    report = {
        "errors": 0,
        "first_errors": [],
        **({"reader": reader, "messages": 5} if name == "backlog" else reader),
    }
    monkeypatch.setattr(measuring, "run_load", lambda *_: report)
    found = measuring.measure(server(tmp_path), name, PLAN, range(300, 301))
    assert (found["errors"], len(found["first_errors"])) == (errors, errors)


def test_a_load_that_fails_is_a_report_with_an_error(tmp_path: Path) -> None:
    """The generator's error text is kept, and nothing is counted."""
    found = measuring.run_load(server(tmp_path), ["send", "--topic", "T"], 60.0)
    assert (found["messages"], found["errors"]) == (0, 1)
    assert "refused" in found["first_errors"][0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nothing"],
        ["--servers", "pulsar"],
        ["--rounds", "0"],
        ["--seconds", "0"],
        ["--backlog-mb", "-1"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line is refused before anything starts."""
    with pytest.raises(SystemExit) as refused:
        compare.main(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_stopped_server_goes_on_and_is_found_again(tmp_path: Path) -> None:
    """A stopped server uses no processor time and accepts messages after it continues; it can be terminated
    while stopped."""
    with peers.running("rmqkit", {"store": "memory"}, tmp_path) as running:
        (process,) = running.processes
        with running.paused():
            state = Path(f"/proc/{process.child.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "T"
        assert peers.routable(running.namesrv)
        with pytest.raises(peers.PeerError, match="ended with status 0"), running.paused():
            process.stop()
