"""What the contract of services asks of figures and metrics."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from rmqkit.plugin.broker import Broker
from rmqkit.plugin.metrics import Family, Metric
from rmqkit.plugin.service import Service
from rmqkit.testing.service import check_what_it_tells


class Telling(Service):
    """Tells what it is given."""

    name = "telling"

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()

    def metrics(self) -> Iterable[Metric]:
        return self._metrics


SENT = Family("mine_sent_total", "counter", "Sent", ("topic",))
OPEN = Family("mine_open", "gauge", "Open")
RIGHT = [Metric(SENT, [(("a",), 1), (("b",), 2)]), Metric(OPEN, [((), 0.5)])]


def test_metrics_of_the_right_form_pass() -> None:
    """With and without samples."""
    check_what_it_tells(Telling(*RIGHT))
    check_what_it_tells(Telling(Metric(SENT, []), Metric(OPEN, [])))
    check_what_it_tells(Telling())


@pytest.mark.parametrize(
    "wrong",
    [
        [*RIGHT, Metric(OPEN, [])],
        [Metric(SENT._replace(name="mine-sent_total"), [])],
        [Metric(SENT._replace(name="mine_sent"), [])],
        [Metric(OPEN._replace(kind="histogram"), [])],
        [Metric(SENT, [((), 1)])],
        [Metric(SENT, [(("a",), 1), (("a",), 2)])],
        [Metric(OPEN, [((), float("nan"))])],
    ],
    ids=["twice", "name", "counter", "kind", "labels", "sample", "number"],
)
def test_another_form_does_not(wrong: list[Metric]) -> None:
    """An exporter could not show it."""
    with pytest.raises(AssertionError):
        check_what_it_tells(Telling(*wrong))
