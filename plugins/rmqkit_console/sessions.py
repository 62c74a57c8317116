"""Sessions of browsers: a signed cookie says who one is, and a token in each form that the form is ours.

The key is random and lives as long as the process, so a restart ends all sessions.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import sha256

import msgspec
from attrs import frozen

LIFETIME_MS = 12 * 60 * 60 * 1000
#: Sessions that were ended before their time, as they are remembered.
MAX_ENDED = 10_000
#: Wrong passwords within `FAILURES_MS` after which nobody can log in for a while.
MAX_FAILURES = 10
FAILURES_MS = 60_000


@frozen
class Session:
    """One browser; `user` is empty before it logs in."""

    id: str
    user: str
    ends_ms: int


class Sessions:
    """Makes sessions, and finds them by their cookies."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._key = secrets.token_bytes(32)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self, user: str = "") -> Session:
        return Session(secrets.token_urlsafe(18), user, self._now_ms() + LIFETIME_MS)

    def end(self, session: Session) -> None:
        """Let its cookie be worth nothing from now on."""
        self._ended[session.id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def cookie(self, session: Session) -> str:
        """The value of the session's cookie."""
        content = msgspec.json.encode([session.id, session.user, session.ends_ms]).hex()
        return f"{content}.{self._sign('cookie', content)}"

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None for one that is not signed here, too old or ended."""
        content, _, signature = cookie.partition(".")
        if not same_text(signature, self._sign("cookie", content)):
            return None
        id_, user, ends_ms = msgspec.json.decode(bytes.fromhex(content))
        if ends_ms <= self._now_ms() or id_ in self._ended:
            return None
        return Session(id_, user, ends_ms)

    def token(self, session: Session) -> str:
        """The token of the session's forms."""
        return self._sign("form", session.id)

    def is_token(self, session: Session, given: str) -> bool:
        return same_text(given, self.token(session))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode("utf-8", "surrogatepass"), sha256).hexdigest()


class Attempts:
    """Counts wrong passwords, so that they cannot be tried at will."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._failures: deque[int] = deque(maxlen=MAX_FAILURES)

    @property
    def are_too_many(self) -> bool:
        return len(self._failures) == MAX_FAILURES and self._failures[0] > self._now_ms() - FAILURES_MS

    def failed(self) -> None:
        self._failures.append(self._now_ms())


def same_text(given: str, wanted: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "replace"))


__all__ = ["Attempts", "Session", "Sessions", "same_text"]
