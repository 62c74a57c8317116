"""What stands before the pages: hosts, sessions, headers."""

from __future__ import annotations

import pytest

from rmqkit.client import Client
from rmqkit_console.guard import MAX_BODY_BYTES
from tests.plugins.console.asking import SECRET, console_of, http_of

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("[::1]:8080", 200),
        ("10.0.0.7", 200),
        ("console.example:443", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
async def test_names_under_which_it_answers(host: str, status: int) -> None:
    """A page of another site that gives its name the console's address gets nothing."""
    async with (
        Client(NOWHERE) as client,
        console_of(client, hosts=("Console.example",)) as console,
        http_of(console) as http,
    ):
        answer = await http.get("/static/console.css", headers={"host": host})
        assert answer.status_code == status


async def test_headers_of_every_answer() -> None:
    """Pages, errors, redirections and refusals forbid scripts, frames and copies."""
    async with Client(NOWHERE) as client, console_of(client, user="ann") as console, http_of(console) as http:
        answers = [
            await http.get("/"),
            await http.get("/login"),
            await http.get("/static/console.css"),
            await http.get("/static/none"),
            await http.get("/", headers={"host": "evil.example"}),
            await http.get("/?format=json"),
            await http.post("/login"),
        ]
        assert [each.status_code for each in answers] == [303, 200, 200, 404, 421, 401, 403]
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self' data:")
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


async def test_the_cookie() -> None:
    """Scripts do not see it, other sites do not send it, and its name has the port."""
    async with Client(NOWHERE) as client, console_of(client, user="ann") as console, http_of(console) as http:
        cookie = (await http.get("/login")).headers["set-cookie"]
        assert cookie.startswith("rmqkit_console_8080=")
        assert "; HttpOnly; SameSite=Strict" in cookie
        assert "set-cookie" not in (await http.get("/login")).headers


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "9" * 40, "-1", "x"])
async def test_requests_have_a_size(length: str) -> None:
    """What announces more is refused before it comes, on every path."""
    async with Client(NOWHERE) as client, console_of(client) as console, http_of(console) as http:
        for path in ("/login", "/", "/static/console.css"):
            answer = await http.post(path, headers={"content-length": length})
            assert answer.status_code == 413


@pytest.mark.parametrize("cookie", ["", "x", "5b5d.00", "zz.zz", 'a="', "\xe4.\xe4"])
async def test_a_cookie_of_others(cookie: str) -> None:
    """It is worth as much as none."""
    async with Client(NOWHERE) as client, console_of(client, user="ann") as console, http_of(console) as http:
        given = f"rmqkit_console_8080={cookie}".encode("latin-1")
        answer = await http.get("/", headers=[(b"cookie", given)])
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login"
        assert SECRET not in answer.text
