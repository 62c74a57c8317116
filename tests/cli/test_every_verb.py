"""Every verb of the command line with data to show, in all of its forms."""

from __future__ import annotations

import json
import threading
from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit.cli import whole_parser
from rmqkit.client import BlockingClient, ReceivedMessage
from tests.cli.conftest import PATIENCE_S, Ready, Run, Start
from tests.cli.test_dead_letters import killed
from tests.cli.test_set_aside import put_aside

ROOT = Path(__file__).parents[2]

#: Leaf of the parser -> its words. {form} is "text" or "json"; {id} a message id; {handle} a recall handle;
#: {store} the directory of a store that no broker uses. The order is that of the calls.
CALLS = {
    "topic list": "",
    "topic create": "Created-{form}",
    "topic show": "Orders",
    "topic route": "Orders",
    "topic stats": "Orders",
    "send": "Orders hello",
    "consume": "Orders --group shell-{form}",
    "replay": "Orders --to Elsewhere --max 1",
    "message get": "{id}",
    "message find": "Orders --key k",
    "message recall": "Orders {handle}",
    "group list": "",
    "group show": "billing",
    "group connections": "billing",
    "group lag": "billing",
    "group set": "shell-{form} --retries 3",
    "group pause": "shell-{form}",
    "group resume": "shell-{form}",
    "group reset": "shell-{form} Orders --to first",
    "group delete": "shell-{form} --yes",
    "dlq list": "",
    "dlq show": "billing",
    "dlq resend": "billing --all",
    "set-aside list": "",
    "set-aside show": "broker-a:0",
    "set-aside resend": "--all",
    "status": "",
    "cluster settings": "fileReservedTime",
    "cluster set": "fileReservedTime=71",
    "bench produce": "Orders --messages 10",
    "bench consume": "Orders --messages 10",
    "doctor": "--interval 0.1",
    "topic delete": "Created-{form}",
    "broker ha": "",
    "plugins": "",
    "config show": "",
    "config check": "some.conf",
    "plugin new": "command some-verb",
    "completion": "bash",
    "store inspect": "{store}",
    "store verify": "{store}",
    "store export": "{store} Orders",
    "store copy": "{store} copied --to mmap",
}
#: Verbs that run until they are stopped, or need what this server does not have -> the test that calls them.
ELSEWHERE = {
    "serve": "tests/cli/test_serve.py",
    "namesrv": "tests/cli/test_serve.py",
    "broker": "tests/cli/test_serve.py",
    "filter-server": "tests/cli/test_filter_server.py",
    "proxy": "tests/cli/test_proxy.py",
    "console": "tests/cli/test_console.py",
    "tail": "tests/cli/test_filtered_in_python.py",
    "cluster backup": "tests/cli/test_cluster.py",
    "cluster restore": "tests/cli/test_cluster.py",
    "demo": "tests/e2e/test_demo.py",
    "demo-spark": "tests/spark/test_demo.py",
    "acl user list": "tests/cli/test_acl.py",
    "acl user set": "tests/cli/test_acl.py",
    "acl user delete": "tests/cli/test_acl.py",
    "acl policy list": "tests/cli/test_acl.py",
    "acl policy set": "tests/cli/test_acl.py",
    "acl policy delete": "tests/cli/test_acl.py",
    "acl policy explain": "tests/cli/test_acl.py",
    "failover status": "tests/plugins/failover/test_commands.py",
    "failover switch": "tests/plugins/failover/test_commands.py",
    "failover remove": "tests/plugins/failover/test_commands.py",
}


#: Verbs whose only form is JSON.
JSON_ALONE = {"store export"}


def _leaves(parser: ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """The verbs of the parser with their actions, and whether they have `--json`."""
    actions: list[Action] = parser._actions
    nested = [action for action in actions if isinstance(action, _SubParsersAction)]
    for action in nested:
        for name, child in action.choices.items():
            yield from _leaves(child, (*path, name))
    if not nested:
        has_json = any("--json" in action.option_strings for action in actions)
        named = next((action for action in actions if action.dest == "action"), None)
        yield " ".join(path), has_json
        for choice in () if named is None else named.choices or ():
            yield " ".join((*path, choice)), has_json


def test_no_verb_is_forgotten() -> None:
    """Each verb of the parser is called here, or by the test that is named; none is named that is gone."""
    leaves = {leaf for leaf, _ in _leaves(whole_parser())} - {"config"}
    assert leaves == CALLS.keys() | ELSEWHERE.keys()
    for leaf, file in ELSEWHERE.items():
        assert f'"{leaf.split()[0]}"' in (ROOT / file).read_text(), (leaf, file)


@pytest.fixture
def message_id(client: BlockingClient) -> Iterator[str]:
    """A message with a key, beside dead letters of a group with a member that is online."""
    killed(client, "billing", b"one", b"two")
    put_aside(client, "packing", b"long")
    with client.producer("p") as producer:
        sent = producer.send("Orders", b"three", keys=["k"])
    consumed = threading.Event()

    async def note(message: ReceivedMessage) -> None:
        consumed.set()

    consumer = client.push_consumer("billing", subscribe={"Orders": "*"}, start="first")
    thread = threading.Thread(target=consumer.run, args=(note,))
    thread.start()
    assert consumed.wait(PATIENCE_S)
    yield sent.offset_message_id
    consumer.stop()
    thread.join()


@pytest.fixture
def handle(client: BlockingClient) -> str:
    """The recall handle of a message that waits."""
    with client.producer("p") as producer:
        sent = producer.send("Orders", b"later", properties={"TIMER_DELAY_SEC": "3600"})
    assert sent.recall_handle is not None
    return sent.recall_handle


@pytest.fixture
def store(rmqkit: Run, start: Start, tmp_path: Path) -> str:
    """The directory of a store with a message of topic Orders, which no broker uses."""
    words = ("--data", "stored", "--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0")
    ready = start("serve", *words, "--set", "mappedFileSizeCommitLog=8388608")
    sent = rmqkit("send", "Orders", "x", "--namesrv", ready.where["namesrv"])
    assert sent.returncode == 0, sent.stderr
    assert ready.stop() == 0
    return str(tmp_path / "stored")


def test_every_verb_ends_well_in_every_form(
    rmqkit: Run, server: Ready, message_id: str, handle: str, store: str, tmp_path: Path
) -> None:
    """With `--json` every verb prints documents, without it text; none fails, and none shows a traceback."""
    (tmp_path / "some.conf").write_text("brokerName=b\n")
    forms = dict(_leaves(whole_parser()))
    wrong: list[str] = []
    for leaf, words in CALLS.items():
        for form in ("json",) if leaf in JSON_ALONE else ("text", "json") if forms[leaf] else ("text",):
            given = words.format(form=form, id=message_id, handle=handle, store=store)
            call = [*leaf.split(), *given.split()]
            option = ["--json"] if form == "json" and forms[leaf] else []
            ended = rmqkit(*call, *option, env={"NAMESRV_ADDR": server.where["namesrv"]})
            code = ended.returncode if leaf != "doctor" else ended.returncode & ~1
            if code or "Traceback" in ended.stderr:
                wrong.append(f"{call}: code {ended.returncode}, {ended.stderr[-200:]!r}")
            elif not _has_form(ended.stdout, form):
                wrong.append(f"{call}: no {form}: {ended.stdout!r}")
    assert not wrong, "\n".join(wrong)


def _has_form(printed: str, form: str) -> bool:
    try:
        documents = [json.loads(printed)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in printed.splitlines()]
        except ValueError:
            documents = []
    return bool(documents) if form == "json" else bool(printed.strip()) and not documents
