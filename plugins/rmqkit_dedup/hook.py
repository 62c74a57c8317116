"""The put hook that finds repeated messages."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hooks import AlreadyStored, PutMessageHook, Refusals
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import ResponseCode
from rmqkit_dedup.settings import DedupSettings
from rmqkit_dedup.windows import Key, Window, seen_at, window_of


class DropRepeated(NeedsBroker, PutMessageHook):
    """Answers a message whose key is known with the place of the first one. It runs behind the hooks that
    give a message another topic: a timed message and one of a transaction are compared when they come to
    their own.

    Between the call before an append and that behind it, keys of the run are in `_new`: a message that comes
    twice in one run has no place yet when the second is looked at."""

    def __init__(self) -> None:
        #: Topic -> its window, for the topics that ask for one.
        self.windows: dict[str, Window] = {}
        self.topics = self.windows.keys()
        #: Set when a window has come that is not complete.
        self.changed = trio.Event()
        self._new: dict[tuple[str, Key], tuple[PutMessage, list[AlreadyStored]]] = {}

    def open(self, broker: RequestBroker) -> None:
        self._broker = broker
        self.look_at_all()
        broker.topics.on_turn.append(self.look_at)

    def look_at_all(self) -> None:
        """Forget everything, and begin with the topics that there are."""
        self.windows.clear()
        for topic in self._broker.topics.configs:
            self.look_at(topic)

    def look_at(self, topic: str) -> None:
        """A topic has changed, or is being deleted: what was known of it may be gone."""
        self.windows.pop(topic, None)
        config = self._broker.topics.configs.get(topic)
        window = None if config is None else window_of(topic, config.attributes)
        if window is not None:
            self.windows[topic] = window
            self.changed.set()

    def before_put(self, run: MessageRun) -> Refusals | None:
        self._new.clear()
        now_ms = self._broker.clock.now_ms()
        known: dict[int, Exception] = {}
        for at, message in enumerate(run):
            window = self.windows[message.topic]
            if not window.is_complete:
                known[at] = RequestRefused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"this broker still reads which messages of topic {message.topic} were stored within"
                    f" {window.window_ms} ms: send again in a moment",
                )
                continue
            key = window.key_of(message.properties)
            if key is None:
                continue
            seen = window.find(key, now_ms)
            if seen is not None:
                message.queue_id = seen.queue_id
                known[at] = AlreadyStored(seen.place)
                window.repeated += 1
                continue
            first, waiting = self._new.setdefault((message.topic, key), (message, []))
            if first is not message:
                message.queue_id = first.queue_id
                known[at] = repeated = AlreadyStored()
                waiting.append(repeated)
                window.repeated += 1
        return known or None

    def after_put(self, run: MessageRun, results: Sequence[Appended | RequestRefused]) -> None:
        for message, result in zip(run, results, strict=True):
            window = self.windows[message.topic]
            key = window.key_of(message.properties)
            new = None if key is None else self._new.pop((message.topic, key), None)
            if key is None or new is None:
                continue
            for repeated in new[1]:
                repeated.place = result
            if isinstance(result, Appended):
                window.add(seen_at(key, message.queue_id, result))
        self._limit()

    def _limit(self) -> None:
        """Share the bound of all keys: who has most gives way."""
        most = self._broker.config.owned(DedupSettings).dedup_max_keys
        while (excess := sum(map(len, self.windows.values())) - most) > 0:
            share = -(-excess // len(self.windows))
            fullest = max(self.windows.values(), key=len)
            fullest.limit(len(fullest) - share)


__all__ = ["DropRepeated"]
