"""The run of all benchmarks: its table, its plot and its commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, other_peers


def one(rate: float, **more: Any) -> dict[str, Any]:
    return {"messages_per_s": rate, "cpu_us": 2.0, "other_cores": 0.0, "errors": 0} | more


FOUND: dict[str, dict[str, Any]] = {
    "kafka": {
        "status": 0,
        "output": "",
        "summary": {
            "servers": {"kafka": {}, "rmqkit": {}},
            "scenarios": {"batch": {"kafka": one(1000), "rmqkit": one(2500, errors=3), "ratio": 2.5}},
        },
    },
    "stores": {"status": 1, "output": "append 1 2\n"},
}


def test_ratios_are_rows_and_other_parts_follow() -> None:
    """Errors and failed parts show in the report."""
    told = figures.report(FOUND)
    (row,) = [line for line in told.splitlines() if "Kafka" in line]
    assert "| 1 000 | 2 500 | 2.50 | 2.0 / 2.0 | 1.0 | 3 errors |" in row
    assert "(exit status 1)" in told
    assert "append 1 2" in told


def test_figures_are_written_into_the_page() -> None:
    """Between the marks, with the machine and the date of each part; a page without marks is refused."""
    on = {"cores": 2, "cpu": "X", "memory_gb": 8.0, "kernel": "6", "python": "3.11"}
    found = {name: each | {"machine": on, "date": "2026-01-02"} for name, each in FOUND.items()}
    page = f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n"
    told = figures.written(page, found)
    assert told.startswith("before\n")
    assert told.endswith("\nafter\n")
    assert "old" not in told
    assert "2026-01-02, 2 cores (X), 8.0 GB, Linux 6, Python 3.11: kafka, stores." in told
    assert "| 1 000 | 2 500 | 2.50 |" in told
    assert figures.written(told, found) == told
    with pytest.raises(ValueError, match="has no lines"):
        figures.written("no marks", found)


def test_the_page_has_the_marks() -> None:
    """A run finds where its figures go."""
    assert figures.written(figures.DOCS.read_text(), {}).count(figures.END) == 1


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra demo")
    figures.plot(FOUND, tmp_path / "figures.svg")
    assert "<svg" in (tmp_path / "figures.svg").read_text()


def test_every_part_has_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--list prints a line for each part, and runs nothing."""
    assert figures.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(figures.PARTS)
    assert all(line.split()[1:3] == ["python", "-m"] for line in lines)


@pytest.mark.parametrize("name", sorted(other_peers.SENDS))
def test_other_servers_get_only_loads_that_they_can_take(name: str) -> None:
    assert set(figures.PARTS[name].goals or {}) <= set(other_peers.SENDS[name])
