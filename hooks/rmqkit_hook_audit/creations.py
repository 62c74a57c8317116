"""Detects the creation and deletion of topics and groups: by request, by a first send or heartbeat, by the
broker itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Protocol

from rmqkit.plugin.broker import Broker
from rmqkit_hook_audit.events import Created, now
from rmqkit_hook_audit.hooks import Watching
from rmqkit_hook_audit.recorder import Recorder


class Table(Protocol):
    """A table of a broker whose names are ordered: new ones are last."""

    @property
    def on_change(self) -> list[Callable[[], None]]: ...

    @property
    def configs(self) -> dict[str, Any]: ...


class Creations(Watching):
    """Compares the tables of topics and groups with their previous state whenever one of them changes."""

    def __init__(self, broker: Broker) -> None:
        self._tables = [_Watched("topic", broker.topics), _Watched("group", broker.groups)]

    def begin(self, recorder: Recorder) -> None:
        for table in self._tables:
            table.begin(recorder)


class _Watched(Watching):
    def __init__(self, kind: str, table: Table) -> None:
        self._kind = kind
        self._table = table
        self._known: set[str] = set()

    def begin(self, recorder: Recorder) -> None:
        if recorder.on and not self._recorder.on:
            self._known = set(self._table.configs)
            self._table.on_change.append(self._changed)
        elif self._recorder.on and not recorder.on:
            self._table.on_change.remove(self._changed)
        self._recorder = recorder

    def _changed(self) -> None:
        """New names are at the end, so the cost depends on their number; only a deletion requires a scan of
        the table."""
        configs, known = self._table.configs, self._known
        created = list(takewhile(lambda name: name not in known, reversed(configs)))
        deleted = known.difference(configs) if len(known) + len(created) != len(configs) else set()
        if created or deleted:
            known -= deleted
            known.update(created)
            self._recorder.record(
                Created(
                    time=now(),
                    broker=self._recorder.broker,
                    kind=self._kind,
                    created=created[::-1],
                    deleted=sorted(deleted),
                )
            )
