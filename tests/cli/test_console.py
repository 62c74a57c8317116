"""`rmqkit console`, as another process."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from rmqkit.testing.broker import running_cluster
from tests.cli.conftest import Run, Start
from tests.hooks.acl.kit import ROOT, checked_cluster
from tests.plugins.console.asking import TOKEN

pytestmark = [
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the console is another process"),
]


async def test_a_console_before_a_broker(tmp_path: Path, start: Start) -> None:
    """It says where it listens, shows the cluster there, and stops in peace."""
    async with running_cluster(tmp_path / "data", scheme="tcp") as cluster:
        words = ("console", "--namesrv", cluster.namesrv_text, "--listen", "127.0.0.1:0")
        console = await trio.to_thread.run_sync(partial(start, *words))
        assert console.line.startswith("rmqkit ready console=http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=console.where["console"]) as http:
            page = await http.get("/")
            values = (await http.get("/", params={"format": "json"})).json()
        assert page.status_code == 200
        assert "broker-a" in page.text
        assert [each["broker"] for each in values["brokers"]] == ["broker-a"]
        assert await trio.to_thread.run_sync(console.stop) == 0


def test_a_console_of_serve(start: Start, rmqkit: Run) -> None:
    """The ready line has its address; with several brokers it is a program of its own."""
    ports = ("--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0", "--memory")
    served = start("serve", *ports, "--console", "127.0.0.1:0")
    page = httpx.get(f"http://{served.where['console']}/", params={"format": "json"}, timeout=60).json()
    assert [each["broker"] for each in page["brokers"]] == ["broker-a"]
    assert served.stop() == 0
    refused = rmqkit("serve", "--brokers", "2", "--console", "127.0.0.1:0")
    assert (refused.returncode, "rmqkit console --namesrv" in refused.stderr) == (2, True)


async def test_a_console_with_a_login(tmp_path: Path, start: Start) -> None:
    """The password is in a file; pages lead to the form."""
    (tmp_path / "password").write_text("correct horse\n")
    words = ("console", "--namesrv", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--user", "ann")
    console = await trio.to_thread.run_sync(partial(start, *words, "--password-file", "password"))
    port = console.where["console"].rstrip("/").rpartition(":")[2]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answer = await http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert await trio.to_thread.run_sync(console.stop) == 0


async def test_a_console_that_asks_for_keys(tmp_path: Path, start: Start) -> None:
    """Beyond loopback, before access control: pages lead to the form, and right keys to the page."""
    async with checked_cluster(tmp_path / "data", scheme="tcp") as cluster:
        words = ("console", "--namesrv", cluster.namesrv_text, "--listen", "0.0.0.0:0", "--cluster-login")
        console = await trio.to_thread.run_sync(partial(start, *words))
        port = console.where["console"].rstrip("/").rpartition(":")[2]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            assert (await http.get("/")).headers["location"] == "/login"
            token = TOKEN.search((await http.get("/login")).text)
            assert token is not None
            form = {"user": ROOT[0], "password": ROOT[1], "token": token[1]}
            assert (await http.post("/login", data=form)).headers["location"] == "/"
            assert "broker-a" in (await http.get("/")).text
        assert await trio.to_thread.run_sync(console.stop) == 0


def test_what_a_console_refuses(rmqkit: Run) -> None:
    """One line says what is missing; it opens to nobody without a login."""
    without = rmqkit("console")
    assert without.returncode == 2
    assert "add --namesrv HOST:PORT" in without.stderr
    wide = rmqkit("console", "--namesrv", "127.0.0.1:1", "--listen", "0.0.0.0:0")
    assert wide.returncode == 2
    assert "add --user NAME" in wide.stderr
    assert "add --cluster-login" in wide.stderr
    nobody = rmqkit("console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--user", "ann")
    assert nobody.returncode == 2
    assert "RMQKIT_CONSOLE_PASSWORD" in nobody.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        busy = rmqkit("console", "--namesrv", "127.0.0.1:1", "--listen", where)
    assert busy.returncode == 2
    assert f"the console cannot listen on {where}" in busy.stderr
    for ended in (without, wide, nobody, busy):
        assert "Traceback" not in ended.stderr
        assert ended.stdout == ""


def test_help_of_the_console(rmqkit: Run) -> None:
    """It names the options that open it further."""
    helped = rmqkit("console", "--help")
    assert helped.returncode == 0
    for option in ("--listen", "--user", "--cluster-login", "--allow-writes", "--hide-bodies"):
        assert option in helped.stdout
