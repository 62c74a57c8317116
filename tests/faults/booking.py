"""Orders that are booked by processes which are killed, and what became of their messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from attrs import define, field
from sqlalchemy import create_engine, select

from rmqkit.client import BlockingClient, ReceivedMessage
from rmqkit.client.outbox import Outbox
from tests import programs
from tests.faults.booking_program import GROUP, TOPIC, orders

PROGRAM = Path(__file__).with_name("booking_program.py")
_LAST = b"last"


@define
class Booking:
    """Programs that book orders in a database and tell of them through a broker."""

    namesrv: str
    url: str
    face: str
    directory: Path
    #: Number of orders that programs have begun to book.
    begun: int = 0
    _kills: int = field(default=0, init=False)

    def prepare(self) -> None:
        """Make the tables and the topic."""
        engine = create_engine(self.url)
        Outbox(engine).table.create(engine)
        orders.create(engine)
        engine.dispose()
        with BlockingClient(self.namesrv) as client:
            client.admin.create_topic(TOPIC, queues=1)

    def kill_at_every_step(self) -> int:
        """Book an order for each step, in a process that is killed there. Returns the number of steps."""
        return self._run("book")

    def kill_checks_at_every_step(self) -> int:
        """Kill processes that answer for an order that nobody has booked, and for those of the processes that
        were killed before. Returns the number of steps."""
        return self._run("check")

    def _run(self, job: str) -> int:
        words = [str(PROGRAM), job, self.face, str(self.begun + 1), self.url]
        result = programs.run(words, self.directory, env={"NAMESRV_ADDR": self.namesrv})
        assert result.returncode == 0, result.stderr.decode()
        processes = int(result.stdout)
        self.begun += processes
        return processes - 1

    def booked(self) -> list[int]:
        """The orders in the database."""
        engine = create_engine(self.url)
        with engine.connect() as connection:
            found = list(connection.scalars(select(orders.c.number).order_by(orders.c.number)))
        engine.dispose()
        return found

    def delivered(self) -> Counter[int]:
        """How often each order was delivered, once the broker has asked about all of them. Another message,
        about which it asks last and which is committed in the third round, comes after all others."""
        engine = create_engine(self.url)
        outbox = Outbox(engine, patience_ms=0)
        rounds = 0

        async def check(half: ReceivedMessage) -> bool | None:
            nonlocal rounds
            if half.body == _LAST:
                rounds += 1
                return True if rounds == 3 else None
            return await outbox.check(half)

        found: Counter[int] = Counter()
        with BlockingClient(self.namesrv) as client, client.producer(GROUP, check=check) as producer:
            with producer.transaction(TOPIC, _LAST) as tx:
                tx.unknown()
            with client.lite_pull_consumer("counting", subscribe=TOPIC, start="first") as consumer:
                for message in consumer:
                    if message.body == _LAST:
                        break
                    found[int(message.body)] += 1
        engine.dispose()
        return found
