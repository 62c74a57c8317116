"""The application: pages by path, their errors, login and logout."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import trio
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from rmqkit.client import BrokerError, BrokerUnknown, ClientError, NoRoute, RmqError
from rmqkit.protocol.codes import ResponseCode
from rmqkit_console import pages
from rmqkit_console.console import Asked, Console, Page
from rmqkit_console.guard import (
    LOGIN,
    MAX_BODY_BYTES,
    Guard,
    cookie_name,
    log_in_first,
    set_cookie,
    wants_json,
)
from rmqkit_console.pages import dead_letters
from rmqkit_console.people import NobodyChecks, WrongKeys
from rmqkit_console.rendering import FOLDER, environment
from rmqkit_console.sessions import Attempts, Session, Sessions, same_text
from rmqkit_console.settings import LogsIn
from rmqkit_console.wrong_input import WrongInput

_log = logging.getLogger(__name__)
#: Pages that ask the cluster at the same time; further ones wait.
MAX_PAGES = 8

Handler = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """An answer with a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class LogInFirst(Exception):
    """The session has ended."""


class Application:
    """The handlers of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._templates = environment()
        self._sessions = Sessions(console.now_ms)
        self._attempts = Attempts(console.now_ms)
        self._limiter = trio.CapacityLimiter(MAX_PAGES)
        self._logging_in = trio.Lock()

    def asgi(self) -> ASGIApp:
        """The application behind its guard."""
        routes: list[Route | Mount] = [Route(page.path, self._page(page)) for page in pages.ALL]
        routes += [
            Route(LOGIN, self._answering("Log in", self._login_form)),
            Route(LOGIN, self._answering("Log in", self._login), methods=["POST"]),
            Route("/logout", self._answering("Log out", self._logout), methods=["POST"]),
            Route("/dead-letters/resend", self._answering("Send again", self._resend), methods=["POST"]),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
            Route("/{path:path}", self._answering("Not found", self._unknown)),
        ]
        needs_login = self._console.logs_in.is_first
        inner = Starlette(routes=routes)
        return Guard(inner, self._console.settings, self._sessions, needs_login=needs_login)

    def _console_of(self, request: Request) -> Console:
        """The console with the user's client. Raises LogInFirst when that session has ended."""
        session: Session = request.state.session
        if not session.user or not self._console.logs_in.is_by_keys:
            return self._console
        client = self._console.people.client_of(session)
        if client is None:
            raise LogInFirst
        return evolve(self._console, client=client)

    def _page(self, page: Page) -> Handler:
        async def show(request: Request) -> Response:
            async with self._limiter:
                data = await page.view(self._console_of(request), Asked(request.query_params))
            if wants_json(request):
                return _json(data)
            return self._html(request, page.template, page.title, data)

        return self._answering(page.title, show)

    def _answering(self, title: str, handler: Handler) -> Handler:
        """The handler, with a page for each error."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except LogInFirst:
                return log_in_first(request)
            except (WrongInput, Refused, RmqError) as error:
                if _is_denied(error) and self._may_log_in(request.state.session):
                    return log_in_first(request)
                status, text = _status(error), str(error)
            except Exception:  # noqa: BLE001 - a page that fails must not end the others
                _log.exception("the page %s failed", request.url.path)
                status, text = 500, "the console failed to make this page; its log says why"
            if wants_json(request):
                return _json({"error": text}, status)
            return self._html(request, "error.html", title, {"text": text, "status": status}, status)

        return answer

    def _may_log_in(self, session: Session) -> bool:
        return self._console.logs_in.is_by_keys and not session.user

    def _html(
        self, request: Request, template: str, title: str, data: dict[str, Any], status: int = 200
    ) -> Response:
        session: Session = request.state.session
        shell = {
            "title": title,
            "navigation": [page for page in pages.ALL if page.is_main],
            "path": request.url.path,
            "user": session.user,
            "needs_login": self._console.logs_in.is_first,
            "may_log_in": self._may_log_in(session),
            "token": self._sessions.token(session),
            "settings": self._console.settings,
        }
        text = self._templates.get_template(template).render(data, shell=shell)
        return HTMLResponse(text, status)

    async def _unknown(self, request: Request) -> Response:
        raise Refused(404, f"there is no page {request.url.path}")

    async def _form(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form of this console. Raises Refused."""
        body = bytearray()
        try:
            async with aclosing(request.stream()) as parts:
                async for part in parts:
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        raise Refused(413, f"a form has at most {MAX_BODY_BYTES} bytes")
        except ClientDisconnect:
            raise Refused(400, "the form did not arrive") from None
        try:
            fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000)
        except ValueError as error:
            raise Refused(400, f"this is not a form: {error}") from error
        if not self._sessions.is_token(request.state.session, dict(fields).get("token", "")):
            raise Refused(403, "the form is not of this session: open the page again and repeat")
        return fields

    async def _resend(self, request: Request) -> Response:
        fields = await self._form(request)
        if not self._console.settings.allow_writes:
            raise Refused(403, "this console only reads: start it with --allow-writes to send again")
        dead_letters.begin(self._console_of(request), fields, request.state.session.user)
        return RedirectResponse("/resends", status_code=303)

    # --- login ----------------------------------------------------------------------------------------------

    async def _login_form(self, request: Request) -> Response:
        self._check_has_login()
        data = {"next": request.query_params.get("next", ""), "byKeys": self._console.logs_in.is_by_keys}
        return self._html(request, "login.html", "Log in", data)

    async def _login(self, request: Request) -> Response:
        self._check_has_login()
        form = dict(await self._form(request))
        user, password = form.get("user", ""), form.get("password", "")
        # One after the other, so that those under way at the same time are counted.
        async with self._logging_in:
            if self._attempts.are_too_many:
                raise Refused(429, "too many wrong passwords: wait a minute")
            if self._console.logs_in.is_by_keys:
                session = await self._by_keys(user, password)
            else:
                session = self._by_password(user, password)
        await self._end(request.state.session)
        _log.info("%s logged in to the console", user)
        return self._with_session(request, form.get("next", ""), session)

    def _check_has_login(self) -> None:
        if self._console.logs_in is LogsIn.NOT:
            raise Refused(404, "this console has no login")

    def _by_password(self, user: str, password: str) -> Session:
        login = self._console.login
        right = login and [same_text(user, login.user), same_text(password, login.password)]
        if not right or not all(right):
            raise self._failed("user or password is wrong")
        return self._sessions.begin(user)

    async def _by_keys(self, access_key: str, secret_key: str) -> Session:
        if not access_key or not secret_key:
            raise self._failed("access key or secret key is missing")
        people = self._console.people
        try:
            client = await people.proven(access_key, secret_key)
        except WrongKeys:
            raise self._failed("access key or secret key is wrong") from None
        except NobodyChecks:
            raise self._failed(
                "the servers of this cluster take any secret key, so a log-in would prove nothing: switch"
                " their access control on (authenticationEnabled = true)"
            ) from None
        session = self._sessions.begin(access_key)
        await people.begin(session, client)
        return session

    def _failed(self, text: str) -> Refused:
        """The answer to a log-in that failed, which is counted."""
        self._attempts.failed()
        _log.warning("a log-in to the console failed: %s", text)
        return Refused(403, text)

    async def _logout(self, request: Request) -> Response:
        await self._form(request)
        await self._end(request.state.session)
        return self._with_session(request, LOGIN, self._sessions.begin())

    async def _end(self, session: Session) -> None:
        self._sessions.end(session)
        await self._console.people.end(session)

    def _with_session(self, request: Request, wanted: str, session: Session) -> Response:
        response = RedirectResponse(_local(wanted), status_code=303)
        name = cookie_name(self._console.settings)
        response.headers["set-cookie"] = set_cookie(request, name, self._sessions.cookie(session))
        return response


def _local(wanted: str) -> str:
    """A path of this console; the first page for anything else, such as another site's address."""
    is_path = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_path else "/"


def _json(data: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(data, enc_hook=str), status, media_type="application/json")


def _is_denied(error: Exception) -> bool:
    """Whether access control refuses."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION


def _status(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    if _is_denied(error):
        return 403
    if isinstance(error, WrongInput):
        return 400
    if isinstance(error, NoRoute | BrokerUnknown) or type(error) is ClientError:
        return 404
    return 502


__all__ = ["Application"]
