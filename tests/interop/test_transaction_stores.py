"""A store with open transactions moves between Apache's broker and rmqkit's: each transaction ends where it
is told to, and is delivered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from tests.interop import peers
from tests.interop.builds import BuildError

#: On a busy machine Apache's broker needs more than a minute from its start to its first questions.
PATIENCE_S = 240
TOPIC, GROUP = "Moving", "moving_p"
SETTINGS = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    # Until an end is noted, the broker asks again, and an answer then is a second delivery.
    "transactionOpBatchInterval": 50,
    # Apache's broker asks before clients can find it, which counts, and may be ten seconds early.
    "transactionCheckMax": 1_000,
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1_048_576 * 8,
}
#: Before the move, so that the first broker asks nothing.
LATE = {"transactionTimeOut": 3_600_000}


def apache(home: Path, store: Path, **settings: object) -> AbstractContextManager[peers.Server]:
    return _Apache(home, store, SETTINGS | settings)


class _Apache(AbstractContextManager[peers.Server]):
    """Apache's name server and a broker on a given store."""

    def __init__(self, home: Path, store: Path, settings: dict[str, object]) -> None:
        self._namesrv = peers.apache_namesrv(home)
        self._home, self._store, self._settings = home, store, settings

    def __enter__(self) -> peers.Server:
        namesrv = self._namesrv.__enter__()
        self._broker = peers.apache_broker(
            self._home,
            namesrv.namesrv,
            store=self._store,
            commit_log_file_bytes=1_048_576 * 8,
            settings=self._settings,
        )
        return self._broker.__enter__()

    def __exit__(self, *error: object) -> None:
        self._broker.__exit__(None, None, None)
        self._namesrv.__exit__(None, None, None)


def ours(home: Path, store: Path, **settings: object) -> AbstractContextManager[peers.Server]:
    given = SETTINGS | settings | {"mappedFileSizeConsumeQueue": 20 * 30_000}
    given |= {"maxHashSlotNum": 50_000, "maxIndexNum": 200_000}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    store.mkdir(exist_ok=True)
    (home / "data").symlink_to(store)
    return peers.rmqkit_serve(home, arguments=words)


def new(home: Path) -> Path:
    """The folder of one broker, for all but its store."""
    home.mkdir()
    return home


async def begin(
    namesrv: str, texts: Sequence[str], commit: Sequence[str] = (), back: Sequence[str] = ()
) -> None:
    """Half messages, some of which are committed or rolled back at once."""
    async with Client(namesrv) as client, client.producer(GROUP, check=lambda half: None) as producer:
        await client.admin.create_topic(TOPIC, queues=1)
        for text in texts:
            async with producer.transaction(TOPIC, text.encode()) as tx:
                if text in back:
                    await tx.rollback()
                elif text not in commit:
                    await tx.unknown()
        # Ends are one-way: what is sent afterwards over the same connection is handled after them.
        await producer.send(TOPIC, b"between")


async def end(namesrv: str, expected: Counter[str]) -> None:
    """Answer the broker's questions with a commit, except for texts that begin with `no`, and read
    everything."""

    def check(half) -> bool:  # type: ignore[no-untyped-def]
        return not half.body.startswith(b"no")

    found: Counter[str] = Counter()
    async with (
        Client(namesrv) as client,
        client.producer(GROUP, check=check),
        client.lite_pull_consumer(
            f"reader{sum(expected.values())}", subscribe=TOPIC, start="first"
        ) as consumer,
    ):
        with trio.fail_after(PATIENCE_S):
            async for message in consumer:
                found[message.body.decode()] += 1
                if found >= expected:
                    break
    assert found == expected


@pytest.mark.parametrize("first", ["apache", "rmqkit"])
async def test_open_transactions_move(tmp_path: Path, first: str) -> None:
    """The other broker asks for them, not for those that have ended; then the store goes back, with more."""
    store = tmp_path / "store"
    kinds = [apache, ours] if first == "apache" else [ours, apache]
    try:
        texts = ["a-open", "no-open", "a-commit", "a-back", "b-open"]
        with kinds[0](new(tmp_path / "1"), store, **LATE) as server:
            await begin(server.namesrv, texts, commit=["a-commit"], back=["a-back"])
        expected = Counter({"a-commit": 1, "between": 1, "a-open": 1, "b-open": 1})
        with kinds[1](new(tmp_path / "2"), store) as server:
            await end(server.namesrv, expected)
            await begin(server.namesrv, ["c-commit"], commit=["c-commit"])
        with kinds[1](new(tmp_path / "3"), store, **LATE) as server:
            await begin(server.namesrv, ["d-open", "no-more"])
        expected += Counter({"c-commit": 1, "between": 2, "d-open": 1})
        with kinds[0](new(tmp_path / "4"), store) as server:
            await end(server.namesrv, expected)
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)
