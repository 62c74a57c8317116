"""`rmqkit store` as a user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import termios
from pathlib import Path

import pytest
import trio

from rmqkit.testing.store import message, running
from tests.cli.conftest import Run, Start
from tests.programs import PROGRAM, clean_environment
from tests.stores.tools.kit import SLOTS, build, flip, log_place, make

#: The test kit's stores have fewer slots than RocketMQ's default.
SETTINGS = ("--set", f"maxHashSlotNum={SLOTS}", "--set", "messageDelayLevel=1s 5s 10s")
SERVE = (
    "serve",
    "--data",
    "data",
    "--namesrv",
    "127.0.0.1:0",
    "--broker",
    "127.0.0.1:0",
    "--set",
    "mappedFileSizeCommitLog=16777216",
)


def test_help_names_the_verb_and_its_actions(rmqkit: Run) -> None:
    """The help lists a plugin's verb among the built-in ones."""
    assert " store " in rmqkit("--help").stdout
    shown = rmqkit("store", "--help")
    assert shown.returncode == 0
    for action in ("inspect", "verify", "export"):
        assert f" {action} " in shown.stdout


async def test_a_sound_store(rmqkit: Run, tmp_path: Path) -> None:
    """The exit code is 0; the output lists the checks, as JSON for programs."""
    queues = await build(tmp_path / "store")
    shown = rmqkit("store", "verify", "store", *SETTINGS)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "store: closed cleanly\n" in shown.stdout
    assert shown.stdout.endswith("no damage found\n")
    verdict = json.loads(rmqkit("store", "verify", "store", "--json", *SETTINGS).stdout)
    assert (verdict["ok"], verdict["damage"], verdict["inUse"], verdict["abort"]) == (
        True,
        None,
        False,
        False,
    )
    assert verdict["units"] == sum(map(len, queues.values()))


async def test_a_damaged_store(rmqkit: Run, tmp_path: Path) -> None:
    """The exit code is 1, and one line on standard error contains file, byte and fault."""
    queues = await build(tmp_path / "store")
    name, byte = log_place(queues["Orders", 1][3].physical_offset)
    flip(tmp_path / "store" / name, byte + 90)
    shown = rmqkit("store", "verify", "store", *SETTINGS)
    assert shown.returncode == 1
    assert shown.stderr.startswith(f"rmqkit: damaged: store/{name}: byte {byte}: ")
    assert shown.stderr.count("\n") == 1
    assert "no damage" not in shown.stdout
    result = rmqkit("store", "verify", "store", "--json", *SETTINGS)
    assert result.returncode == 1
    damage = json.loads(result.stdout)["damage"]
    assert (damage["file"], damage["byte"]) == (f"store/{name}", byte)
    assert "CRC" in damage["what"]


async def test_inspect_for_people_and_programs(rmqkit: Run, tmp_path: Path) -> None:
    """Text and JSON have the same figures."""
    queues = await build(tmp_path / "store")
    found = json.loads(rmqkit("store", "inspect", "store", "--json").stdout)
    assert {
        (topic["topic"], queue["queueId"]): queue["messages"]
        for topic in found["topics"]
        for queue in topic["queues"]
    } == {key: len(messages) for key, messages in queues.items()}
    shown = rmqkit("store", "inspect", "store")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["Bills", "0", "0", str(len(queues["Bills", 0])), str(len(queues["Bills", 0]))] in lines
    assert [
        "log",
        str(found["log"]["files"]),
        str(found["log"]["bytes"]),
        str(found["log"]["allocatedBytes"]),
    ] in lines
    assert f"log offsets 0 to {found['log']['maxOffset']}, segments of 66560 bytes" in shown.stdout
    assert f"confirmedOffset {found['log']['maxOffset']}" in shown.stdout


async def test_export_prints_a_line_for_each_message(rmqkit: Run, tmp_path: Path) -> None:
    """Messages are printed in the order of the queue, selected by the options."""
    queues = await build(tmp_path / "store")
    shown = rmqkit(
        "store", "export", "store", "Orders", "--queue", "2", "--from", "3", "--to", "20", "--tag", "t1"
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    expected = [stored for stored in queues["Orders", 2][3:20] if stored.properties["TAGS"] == "t1"]
    assert [(one["queueOffset"], one["body"]) for one in found] == [
        (stored.queue_offset, stored.body.decode()) for stored in expected
    ]
    assert len(found) > 3


async def test_bodies_that_cannot_be_decompressed(rmqkit: Run, tmp_path: Path) -> None:
    """All messages are printed, and the exit code shows that some bodies are incomplete; with --no-decompress
    none is."""
    async with running(make(tmp_path / "store")) as store:
        store.append([message(body=b"\xff", sys_flag=1), message(body=b"fine")])
    shown = rmqkit("store", "export", "store", "Orders")
    assert (shown.returncode, len(shown.stdout.splitlines())) == (1, 2)
    told = "1 messages could not be decoded and are given as they are stored; their `fault` says why"
    assert shown.stderr == f"rmqkit: {told}\n"
    assert rmqkit("store", "export", "store", "Orders", "--no-decompress").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (("inspect", "nowhere"), 2, "nowhere is not a directory"),
        (("verify", "nowhere"), 2, "nowhere is not a directory"),
        (("export", "nowhere", "T"), 2, "nowhere is not a directory"),
        (("inspect", "foreign"), 1, "foreign is not a message store"),
        (("verify", "foreign"), 1, "foreign is not a message store"),
        (("export", "foreign", "T"), 1, "foreign is not a message store"),
        (("export", "store", "Nothing"), 1, "no topic 'Nothing'"),
        (("export", "store", "Orders", "--queue", "9"), 1, "no queue 9"),
        (("export", "store", "Orders", "--from", "-1"), 2, "--from"),
        (("verify", "store", "--set", "maxHashSlotNum=12"), 2, "maxHashSlotNum"),
        (("verify", "store", "--set", "storePathCommitLog=a,b"), 2, "several paths"),
        ((), 2, "ACTION"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(
    rmqkit: Run, tmp_path: Path, words: tuple[str, ...], code: int, shown: str
) -> None:
    """Wrong arguments and settings have exit code 2, missing stores 1; nothing is created."""
    (tmp_path / "foreign").mkdir()
    async with running(make(tmp_path / "store")) as store:
        store.append([message(keys="k")])
    result = rmqkit("store", *words)
    assert result.returncode == code
    assert shown in result.stderr
    assert "Traceback" not in result.stderr
    assert "usage" in result.stderr or result.stderr.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()
    assert list((tmp_path / "foreign").iterdir()) == []


async def test_the_log_may_be_elsewhere(rmqkit: Run, tmp_path: Path) -> None:
    """storePathCommitLog is taken from the broker's settings file."""
    await build(tmp_path / "store")
    (tmp_path / "store" / "commitlog").rename(tmp_path / "log")
    (tmp_path / "broker.conf").write_text(
        f"storePathCommitLog=log\nmaxHashSlotNum={SLOTS}\nmessageDelayLevel=1s 5s 10s\n"
    )
    result = rmqkit("store", "verify", "store", "--config", "broker.conf")
    assert (result.returncode, result.stderr) == (0, "")
    assert rmqkit("store", "verify", "store").returncode == 1


async def _fill(directory: Path) -> None:
    async with running(
        make(directory, mapped_file_size_commit_log=64 << 20, mapped_file_size_consume_queue=6_000_000)
    ) as store:
        for _ in range(160):
            store.append([message(body=b"x" * 50) for _ in range(500)])


def _read_all(terminal: int) -> bytes:
    """Read until the process at the other end has ended, which raises an error."""
    shown = b""
    with contextlib.suppress(OSError):
        while True:
            shown += os.read(terminal, 4096)
    return shown


def test_a_terminal_sees_a_progress_bar(tmp_path: Path) -> None:
    """The bar is drawn on standard error and erased at the end; standard output has only the result."""
    trio.run(_fill, tmp_path / "store")
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    words = [PROGRAM, "store", "verify", "store", *SETTINGS]
    try:
        with subprocess.Popen(
            words, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=inner
        ) as process:
            os.close(inner)
            shown = _read_all(terminal)
            output, _ = process.communicate(timeout=300)
    finally:
        os.close(terminal)
    assert process.returncode == 0
    assert b"MB/s" in shown
    drawn, erased, rest = shown.rsplit(b"\r", 2)
    assert b"%" in drawn
    assert (erased.strip(), rest) == (b"", b"")
    assert output.endswith(b"no damage found\n")


def test_beside_a_running_broker(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """All three actions work, report that the store is in use and by which process, and do not change the
    lock or the directory."""
    broker = start(*SERVE)
    namesrv = ("--namesrv", broker.where["namesrv"])
    assert (
        rmqkit(
            "send", "Orders", "--tag", "new", "--key", "k1", *namesrv, stdin="one\ntwo\nthree\n"
        ).returncode
        == 0
    )
    verdict = json.loads(rmqkit("store", "verify", "data", "--json").stdout)
    assert (verdict["ok"], verdict["inUse"], verdict["abort"], verdict["records"]) == (True, True, True, 3)
    assert verdict["lockHolder"] == broker.process.pid
    shown = rmqkit("store", "inspect", "data")
    assert shown.returncode == 0
    assert f"data: in use by process {broker.process.pid}\n" in shown.stdout
    exported = [json.loads(line) for line in rmqkit("store", "export", "data", "Orders").stdout.splitlines()]
    assert sorted(one["body"] for one in exported) == ["one", "three", "two"]
    consumed = [
        json.loads(line) for line in rmqkit("consume", "Orders", *namesrv, "--json").stdout.splitlines()
    ]
    for one in consumed:
        match = next(other for other in exported if other["messageId"] == one["messageId"])
        assert all(
            match[name] == one[name]
            for name in ("queueId", "queueOffset", "offsetMessageId", "storeTimestamp", "tag", "keys", "body")
        )
    assert len(consumed) == 3
    second = rmqkit(*SERVE)
    assert second.returncode == 1
    assert broker.stop() == 0
    after = json.loads(rmqkit("store", "verify", "data", "--json").stdout)
    assert (after["ok"], after["inUse"], after["abort"], after["records"]) == (True, False, False, 3)
    assert after["indexEntries"] >= 6
