"""Login, logout, forms and pages that do not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Message, Scope

from rmqkit.client import Client
from rmqkit_console import app as application
from rmqkit_console import pages
from rmqkit_console.console import Console, Page
from rmqkit_console.guard import MAX_BODY_BYTES
from rmqkit_console.sessions import MAX_FAILURES
from tests.plugins.console.asking import SECRET, TOKEN, console_of, http_of


@asynccontextmanager
async def browser(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A browser before a console without a cluster."""
    async with (
        Client("127.0.0.1:1", connect_timeout_ms=100) as client,
        console_of(client, **settings) as console,
        http_of(console) as http,
    ):
        yield http


def _post(path: str) -> Scope:
    """A request without its body."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    return scope | {"scheme": "http", "server": ("127.0.0.1", 8080), "http_version": "1.1"}


async def _token(http: httpx.AsyncClient) -> str:
    found = TOKEN.search((await http.get("/login")).text)
    assert found is not None
    return found[1]


async def _log_in(http: httpx.AsyncClient, **fields: str) -> httpx.Response:
    form = {"user": "ann", "password": SECRET, "token": await _token(http)} | fields
    return await http.post("/login", data=form)


async def test_login_and_logout() -> None:
    """Pages need a login, which leads to the page that was asked for; after the logout the cookie is worth
    nothing."""
    async with browser(user="ann") as http:
        asked = await http.get("/topic", params={"topic": "a&b"})
        assert asked.headers["location"] == "/login?next=%2Ftopic%3Ftopic%3Da%2526b"
        assert (await http.get("/", headers={"accept": "application/json"})).status_code == 401
        done = await _log_in(http, next="/topic?topic=a%26b")
        assert (done.status_code, done.headers["location"]) == (303, "/topic?topic=a%26b")
        # There is no cluster; but the page was made.
        inside = await http.get("/")
        assert inside.status_code == 502
        assert "Log out ann" in inside.text
        cookies = dict(http.cookies)
        token = TOKEN.search(inside.text)
        assert token is not None
        left = await http.post("/logout", data={"token": token[1]})
        assert left.headers["location"] == "/login"
        assert (await http.get("/")).status_code == 303
        http.cookies.clear()
        http.cookies.update(cookies)
        assert (await http.get("/")).status_code == 303


async def test_the_session_before_the_login_is_another() -> None:
    """Somebody who knew a cookie before the login has nothing."""
    async with browser(user="ann") as http:
        await http.get("/login")
        before = dict(http.cookies)
        assert (await _log_in(http)).status_code == 303
        assert dict(http.cookies) != before


@pytest.mark.parametrize(
    ("headers", "is_secure"),
    [({}, False), ({"x-forwarded-proto": "http"}, False), ({"x-forwarded-proto": "HTTPS"}, True)],
)
async def test_a_cookie_for_tls_alone(headers: dict[str, str], is_secure: bool) -> None:
    """Where a proxy tells that the browser came by TLS, no session goes over the network without it: not
    the one before the login, nor those that the login and the logout give."""
    async with browser(user="ann") as http:
        first = await http.get("/login", headers=headers)
        token = TOKEN.search(first.text)
        assert token is not None
        # The client knows the console by HTTP, and would keep such a cookie back.
        cookie = first.headers["set-cookie"].partition(";")[0]
        form = {"user": "ann", "password": SECRET, "token": token[1]}
        inside = await http.post("/login", data=form, headers=headers | {"cookie": cookie})
        assert inside.status_code == 303
        cookie = inside.headers["set-cookie"].partition(";")[0]
        page = await http.get("/", headers=headers | {"cookie": cookie})
        token = TOKEN.search(page.text)
        assert token is not None
        left = await http.post("/logout", data={"token": token[1]}, headers=headers | {"cookie": cookie})
        for answer in (first, inside, left):
            attributes = answer.headers["set-cookie"].split("; ")
            assert {"HttpOnly", "SameSite=Strict"} < set(attributes)
            assert ("Secure" in attributes) is is_secure


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"password": "wrong horse"}, "user or password is wrong"),
        ({"user": "bob"}, "user or password is wrong"),
        ({"user": "", "password": ""}, "user or password is wrong"),
        ({"token": "0" * 64}, "the form is not of this session"),
        ({"token": ""}, "the form is not of this session"),
        ({"token": "\xe4"}, "the form is not of this session"),
    ],
)
async def test_a_login_that_fails(fields: Mapping[str, str], text: str) -> None:
    """The answer says whether user and password or the form is wrong, and nobody is logged in."""
    async with browser(user="ann") as http:
        answer = await _log_in(http, **fields)
        assert answer.status_code == 403
        assert text in answer.text
        assert (await http.get("/")).status_code == 303


async def test_passwords_are_not_tried_at_will() -> None:
    """After ten failures within a minute even the right password is refused for a while."""
    async with browser(user="ann") as http:
        for _ in range(MAX_FAILURES):
            assert (await _log_in(http, password="guess")).status_code == 403
        answer = await _log_in(http)
        assert answer.status_code == 429
        assert "wait a minute" in answer.text


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "/\nx", "x"]
)
async def test_a_login_leads_to_no_other_site(wanted: str) -> None:
    """An address that is not a path of the console is replaced by the first page."""
    async with browser(user="ann") as http:
        assert (await _log_in(http, next=wanted)).headers["location"] == "/"


async def test_a_console_without_a_login() -> None:
    """One that signs what it asks has no form for it, and who sends one is told."""
    async with browser(signs=("ann", SECRET)) as http:
        for answer in (await http.get("/login"), await http.post("/login", data={"token": "x"})):
            assert answer.status_code == 404
            assert "has no login" in answer.text


async def test_forms_have_a_size() -> None:
    """One that is too large is refused before it has ended, and what is not a form as well."""
    async with Client("127.0.0.1:1") as client, console_of(client, user="ann") as console:
        app = application.Application(console).asgi()
        for body, status in ((b"x" * (MAX_BODY_BYTES + 1), 413), (b"\xff", 400)):
            answers: list[Message] = []
            parts = iter([{"type": "http.request", "body": body, "more_body": status == 413}])

            async def receive(parts: Iterator[Message] = parts) -> Message:
                return next(parts)

            async def send(message: Message, answers: list[Message] = answers) -> None:
                answers.append(message)

            await app(_post("/login"), receive, send)
            assert answers[0]["status"] == status


async def test_a_browser_that_goes_away(caplog: pytest.LogCaptureFixture) -> None:
    """A form that does not arrive is not a defect: nothing is logged."""
    async with Client("127.0.0.1:1") as client, console_of(client, user="ann") as console:
        answers: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answers.append(message)

        await application.Application(console).asgi()(_post("/login"), receive, send)
        assert answers[0]["status"] == 400
        assert caplog.text == ""


async def test_pages_that_do_not_exist() -> None:
    """They are errors that name the path, escaped."""
    async with browser() as http:
        answer = await http.get("/<script>")
        assert answer.status_code == 404
        assert "there is no page /&lt;script&gt;" in answer.text
        assert (await http.get("/none?format=json")).json() == {"error": "there is no page /none"}
        assert (await http.post("/")).status_code == 405


async def test_a_page_with_a_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the error, the browser a sentence without it."""

    async def broken(console: Console, asked: object) -> dict[str, Any]:
        raise KeyError("secret")

    monkeypatch.setattr(pages, "ALL", (Page("/", "Broken", "error.html", broken),))
    async with browser() as http:
        answer = await http.get("/")
    assert answer.status_code == 500
    assert "its log says why" in answer.text
    assert "secret" not in answer.text
    assert "KeyError" in caplog.text
