"""What appends leave for the writer: all of it goes into one transaction."""

from __future__ import annotations

from attrs import define, field

from rmqkit_store_lmdb.environment import Environment, Transaction
from rmqkit_store_lmdb.layout import NUMBER, STATE_KEY, State
from rmqkit_store_lmdb.queues import Queue


@define
class Batch:
    """`end` is the log position behind it and `ends` the queues' ends; `queues` are those whose rows change, by key, None for one that was deleted."""

    records: list[tuple[bytes, bytes]] = field(factory=list)
    units: list[tuple[bytes, bytes]] = field(factory=list)
    ends: dict[Queue, int] = field(factory=dict)
    queues: dict[bytes, Queue | None] = field(factory=dict)
    dead: list[int] = field(factory=list)
    end: int = 0

    def __bool__(self) -> bool:
        return bool(self.records or self.queues)

    def take_back(self, older: Batch) -> None:
        """Put what could not be written in front again."""
        self.records[:0] = older.records
        self.units[:0] = older.units
        self.dead[:0] = older.dead
        self.ends = older.ends | self.ends
        self.queues = older.queues | self.queues
        self.end = max(self.end, older.end)

    def rows(self) -> dict[bytes, bytes | None]:
        """The rows as they are to be now; for the loop, which changes queues."""
        return {key: None if queue is None else queue.row(self.ends[queue]) for key, queue in self.queues.items()}

    def put(
        self,
        env: Environment,
        txn: Transaction[bytes],
        state: State,
        rows: dict[bytes, bytes | None],
        keys: list[tuple[bytes, bytes]],
    ) -> None:
        """Write it. Raises lmdb.Error."""
        with txn.cursor(env.db("log")) as cursor:
            cursor.putmulti(self.records, append=True)
        with txn.cursor(env.db("units")) as cursor:
            cursor.putmulti(sorted(self.units))
        with txn.cursor(env.db("keys")) as cursor:
            cursor.putmulti(keys)
        queues = env.db("queues")
        for key, row in rows.items():
            if row is None:
                txn.delete(key, db=queues)
            else:
                txn.put(key, row, db=queues)
        for number in self.dead:
            txn.put(NUMBER.pack(number), b"", db=env.db("dead"))
        txn.put(STATE_KEY, state.pack(), db=env.db("meta"))
