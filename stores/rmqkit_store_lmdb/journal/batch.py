"""The content of one LMDB transaction."""

from __future__ import annotations

from attrs import define, field

from rmqkit_store_lmdb.database.environment import Environment, Transaction
from rmqkit_store_lmdb.database.layout import NUMBER, STATE_KEY, State


@define
class Batch:
    """Rows of the databases. `queues` by key, None for one that was deleted; `dead` are the numbers of
    such queues."""

    state: State
    log: list[tuple[bytes, bytes]] = field(factory=list)
    units: list[tuple[bytes, bytes]] = field(factory=list)
    keys: list[tuple[bytes, bytes]] = field(factory=list)
    queues: dict[bytes, bytes | None] = field(factory=dict)
    dead: list[int] = field(factory=list)

    def put(self, env: Environment, txn: Transaction[bytes]) -> None:
        """Write it. Raises lmdb.Error."""
        for name, rows, append in (
            ("log", self.log, True),
            ("units", sorted(self.units), False),
            ("keys", self.keys, True),
        ):
            if rows:
                with txn.cursor(env.db(name)) as cursor:
                    cursor.putmulti(rows, append=append)
        queues, dead = env.db("queues"), env.db("dead")
        for key, row in self.queues.items():
            if row is None:
                txn.delete(key, db=queues)
            else:
                txn.put(key, row, db=queues)
        for number in self.dead:
            txn.put(NUMBER.pack(number), b"", db=dead)
        txn.put(STATE_KEY, self.state.pack(), db=env.db("meta"))
