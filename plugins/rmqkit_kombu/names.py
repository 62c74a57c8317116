"""Names of topics and groups for the queues of Kombu."""

from __future__ import annotations

from urllib.parse import quote


def topic_of(queue: str) -> str:
    """The topic of a queue. Letters, digits, `_` and `-` stay; other characters become % and two hexadecimal
    digits for each byte."""
    return quote(queue, safe="").replace(".", "%2E").replace("~", "%7E")


def topic_of_exchange(exchange: str) -> str:
    """The topic of an exchange that broadcasts; no queue of an ordinary name has it."""
    return topic_of(f"{exchange}/broadcast")


__all__ = ["topic_of", "topic_of_exchange"]
