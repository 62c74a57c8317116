"""What a dead letter says of itself: why it is one, how often it was delivered, and the last error of its
consumer. Tools show it; consumers see it as properties."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from rmqkit.model import properties as props

#: The consumer asked for it; its attempts are used up; it cannot be decoded; the lease of its last delivery
#: ended and nobody had acknowledged it.
ASKED: Final = "asked"
ATTEMPTS: Final = "attempts"
UNREADABLE: Final = "unreadable"
LEASE_ENDED: Final = "lease ended"
#: What a consumer may say.
CAUSES: Final = (ASKED, ATTEMPTS, UNREADABLE)
#: The longest text of an error, in characters.
MAX_ERROR: Final = 1_000


@frozen
class Why:
    """Why a consumer gives a message up. `error` is a text of one line, empty when there is none."""

    cause: str
    error: str = ""


def one_line(error: str) -> str:
    """The text of an error as a property has it: without control characters, not too long."""
    text = "".join(each if each.isprintable() else " " for each in error[:MAX_ERROR])
    return text.encode("utf-8", "replace").decode().strip()


def reasons(why: Why, attempts: int) -> dict[str, str]:
    """The properties of a dead letter that was delivered so often."""
    found = {props.DLQ_CAUSE: why.cause, props.DLQ_ATTEMPTS: str(attempts)}
    error = one_line(why.error)
    return found | ({props.DLQ_ERROR: error} if error else {})
