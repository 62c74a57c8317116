"""A day of orders, produced by a seeded generator that also sums them, and sent to a topic."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from attrs import Factory, define, frozen

from rmqkit.client import BlockingClient, Message

TOPIC = "Orders"
DAY = datetime(2026, 3, 2, tzinfo=UTC)
WINDOW_MINUTES = 30
#: Country -> its share of the orders, and the hour of its evening peak in UTC.
COUNTRIES = {
    "China": (0.40, 12),
    "India": (0.20, 14),
    "Germany": (0.15, 18),
    "Brazil": (0.15, 22),
    "Kenya": (0.10, 17),
}
#: The last order belongs to no country and is late enough to close all windows before it.
_CLOSING_COUNTRY = "none"
_CLOSING = DAY + timedelta(days=1, hours=6)
_SENT_AT_ONCE = 500
_PEAK_HOURS = 3.0


@frozen
class Sum:
    """Number of orders of a window and a country, and their total in cents."""

    orders: int
    cents: int


#: (start of the window in s since 1970, country) -> sum
Sums = dict[tuple[int, str], Sum]


@define
class Day:
    """A day of orders. `sums` grows with each order taken from `events`."""

    orders: int
    seed: int
    sums: Sums = Factory(dict)

    def events(self) -> Iterator[bytes]:
        """The orders as JSON, by time, followed by the closing order."""
        source = random.Random(self.seed)
        for number, (at, country) in enumerate(sorted(self._moments(source))):
            cents = round(source.lognormvariate(3.2, 0.6) * 100)
            start = at - at % (WINDOW_MINUTES * 60)
            before = self.sums.get((start, country), Sum(0, 0))
            self.sums[start, country] = Sum(before.orders + 1, before.cents + cents)
            yield _event(f"order-{number}", at, country, cents)
        yield _event("closing", int(_CLOSING.timestamp()), _CLOSING_COUNTRY, 0)

    def _moments(self, source: random.Random) -> Iterator[tuple[int, str]]:
        """Seconds since 1970, and the country, of each order."""
        begin = int(DAY.timestamp())
        countries = list(COUNTRIES)
        minutes = {country: _minute_weights(peak) for country, (_, peak) in COUNTRIES.items()}
        for country in source.choices(countries, [share for share, _ in COUNTRIES.values()], k=self.orders):
            minute = source.choices(range(24 * 60), cum_weights=minutes[country])[0]
            yield begin + minute * 60 + source.randrange(60), country


def _minute_weights(peak_hour: int) -> Sequence[float]:
    """Cumulative weights of the minutes of the day: a third of the peak all day, and an evening peak."""
    weights, total = [], 0.0
    for minute in range(24 * 60):
        away = abs(minute / 60 - peak_hour)
        away = min(away, 24 - away)
        total += 0.3 + max(0.0, 1 - (away / _PEAK_HOURS) ** 2)
        weights.append(total)
    return weights


def _event(order: str, at: int, country: str, cents: int) -> bytes:
    moment = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    return json.dumps(
        {"order": order, "time": moment, "country": country, "cents": cents}, separators=(",", ":")
    ).encode()


def send(name_server: str, day: Day) -> int:
    """Create the topic and send the day's events. Returns their number. Raises RmqError."""
    sent = 0
    with BlockingClient(name_server) as client, client.producer("spark-demo") as producer:
        client.admin.create_topic(TOPIC)
        events = day.events()
        while bodies := list(islice(events, _SENT_AT_ONCE)):
            producer.send_batch([Message(TOPIC, body, tag="order") for body in bodies])
            sent += len(bodies)
    return sent
