"""Class filters of Apache's Java clients, answered by filter servers with filters in Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, Message
from rmqkit.testing.broker import running_cluster
from tests.interop.builds import BUILD_SECONDS, HERE, java_client, tool
from tests.plugins.filter_server.shop import install, until


@pytest.mark.row("S347")
async def test_a_java_client_subscribes_with_the_name_of_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class name is that of the filter, the source is empty: the client uploads it to the filter server
    that it finds in the route, and gets the messages that match."""
    folder = install(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    classpath = java_client("4.9.8").classpath
    async with (
        running_cluster(tmp_path / "data", scheme="tcp", filterServerNums=1) as cluster,
        Client(cluster.namesrv_text) as client,
    ):
        await until(lambda: cluster.broker.context.filter_servers.addresses)
        await client.admin.create_topic("T", queues=1)
        async with client.producer("shop") as producer:
            for amount in ("3", "30", "4", "50"):
                await producer.send(Message("T", amount.encode(), properties={"amount": amount}))
        program = HERE / "java-filter" / "ClassFilter.java"
        words = [tool("java"), f"-Duser.home={tmp_path}", "-cp", classpath, str(program)]
        words += [cluster.namesrv_text, "g-java", "T", "cheap?below=5", "2"]
        with trio.fail_after(BUILD_SECONDS):
            done = await trio.run_process(words, capture_stdout=True, cwd=tmp_path)
        lines = [line for line in done.stdout.decode().splitlines() if line.isdigit()]
        assert sorted(lines) == ["3", "4"]
