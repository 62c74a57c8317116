"""Sessions and attempts, with a clock that tests move."""

from __future__ import annotations

from attrs import define

from rmqkit_console.sessions import FAILURES_MS, LIFETIME_MS, MAX_ENDED, MAX_FAILURES, Attempts, Sessions


@define
class Clock:
    now_ms: int = 1_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_cookie_is_found_until_its_time() -> None:
    """Afterwards it is worth nothing."""
    clock = Clock()
    sessions = Sessions(clock)
    session = sessions.begin("ann")
    cookie = sessions.cookie(session)
    assert sessions.find(cookie) == session
    clock.now_ms += LIFETIME_MS
    assert sessions.find(cookie) is None


def test_a_session_that_was_ended() -> None:
    """It is not found, and the memory of such sessions has a limit."""
    sessions = Sessions(Clock())
    first, second = sessions.begin(), sessions.begin()
    sessions.end(first)
    assert sessions.find(sessions.cookie(first)) is None
    assert sessions.find(sessions.cookie(second)) == second
    for _ in range(MAX_ENDED):
        sessions.end(sessions.begin())
    assert sessions.find(sessions.cookie(first)) == first


def test_cookies_that_were_changed() -> None:
    """A cookie of another key, or with another content, is worth nothing."""
    sessions = Sessions(Clock())
    cookie = sessions.cookie(sessions.begin())
    content, _, signature = cookie.partition(".")
    other = Sessions(Clock())
    assert other.find(cookie) is None
    assert sessions.find(f"{content[:-2]}00.{signature}") is None
    assert sessions.find(content) is None


def test_tokens() -> None:
    """A token is of one session, and no cookie's signature."""
    sessions = Sessions(Clock())
    one, two = sessions.begin(), sessions.begin()
    assert sessions.is_token(one, sessions.token(one))
    assert not sessions.is_token(two, sessions.token(one))
    assert not sessions.is_token(one, "")
    assert not sessions.is_token(one, sessions.cookie(one).partition(".")[2])


def test_attempts() -> None:
    """They are too many while the tenth last failure is younger than a minute."""
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(MAX_FAILURES):
        assert not attempts.are_too_many
        attempts.failed()
    assert attempts.are_too_many
    clock.now_ms += FAILURES_MS
    assert not attempts.are_too_many
