"""Pairs of a topic and a group, indexed by both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Pairs:
    """A set of (topic, group). The pairs of one topic or group are found and removed without a search through
    all."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._groups: dict[str, dict[str, None]] = {}
        self._topics: dict[str, dict[str, None]] = {}
        for topic, group in pairs:
            self.add(topic, group)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((topic, group) for topic, groups in self._groups.items() for group in groups)

    def add(self, topic: str, group: str) -> None:
        """Add a pair; an existing pair stays."""
        self._groups.setdefault(topic, {})[group] = None
        self._topics.setdefault(group, {})[topic] = None

    def discard(self, topic: str, group: str) -> None:
        """Remove a pair; a missing one is ignored."""
        _drop(self._groups, topic, group)
        _drop(self._topics, group, topic)

    def groups(self) -> set[str]:
        return set(self._topics)

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups.get(topic, ()))

    def topics_of(self, group: str) -> list[str]:
        return list(self._topics.get(group, ()))


def _drop(table: dict[str, dict[str, None]], key: str, member: str) -> None:
    members = table.get(key)
    if members is not None:
        members.pop(member, None)
        if not members:
            del table[key]


__all__ = ["Pairs"]
