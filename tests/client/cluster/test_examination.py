"""The examination of a cluster, without a command line."""

from __future__ import annotations

from pathlib import Path

from rmqkit.client.cluster.examination import Examination
from tests.client.cluster.test_group_admin import consumed


async def test_findings_of_a_cluster(tmp_path: Path) -> None:
    """A name server that does not answer, a missing topic, a group that nobody knows and one without members
    are found, each with what to do."""
    async with consumed(tmp_path) as client:
        servers = [*client.settings.name_servers, "127.0.0.1:1"]
        examination = Examination(
            client.admin,
            client.groups,
            servers,
            topics=["Missing"],
            only=["billing", "nobody"],
            interval_s=0.0,
        )
        found = await examination.run()
    kinds = {(each.check, each.subject) for each in found}
    assert {
        ("unreachable-name-server", "127.0.0.1:1"),
        ("no-route", "Missing"),
        ("unknown-group", "nobody"),
        ("no-consumer", "billing"),
    } <= kinds
    assert all(each.advice for each in found)
