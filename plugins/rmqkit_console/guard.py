"""What stands before every page: the check of the host, the session, the login, and the headers that keep
other sites and other people's scripts out."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmqkit.plugin.address import Address
from rmqkit_console.rendering import url
from rmqkit_console.sessions import LIFETIME_MS, Session, Sessions
from rmqkit_console.settings import ConsoleSettings, is_known_host

LOGIN = "/login"
#: Size of a form, and of what any other request may bring.
MAX_BODY_BYTES = 64 * 1024
#: Paths that need no login.
_OPEN = (LOGIN, "/static/")
#: No script runs, nothing comes from elsewhere, and no other site shows the console in a frame.
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def wants_json(request: Request) -> bool:
    """Whether a program asks: `?format=json`, or JSON before HTML in the header Accept."""
    accept = request.headers.get("accept", "")
    return request.query_params.get("format") == "json" or (
        "application/json" in accept and "text/html" not in accept
    )


class Guard:
    """ASGI middleware. What it passes on has a session in `request.state.session`."""

    def __init__(
        self, app: ASGIApp, settings: ConsoleSettings, sessions: Sessions, *, needs_login: bool
    ) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._needs_login = needs_login
        self._cookie = cookie_name(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        found = self._found(request)
        session = found or self._sessions.begin()
        refused = self._refused(request, session)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        scope.setdefault("state", {})["session"] = session

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and found is None:
                headers = MutableHeaders(scope=message)
                if "set-cookie" not in headers:
                    headers["set-cookie"] = set_cookie(request, self._cookie, self._sessions.cookie(session))
            await send_guarded(message)

        await self._app(scope, receive, send_with_cookie)

    def _found(self, request: Request) -> Session | None:
        try:
            cookie = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return None if cookie is None else self._sessions.find(cookie.value)

    def _refused(self, request: Request, session: Session) -> Response | None:
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return PlainTextResponse(f"A request has at most {MAX_BODY_BYTES} bytes.\n", status_code=413)
        host = request.headers.get("host", "")
        if not is_known_host(host, self._settings):
            return PlainTextResponse(
                "This console is not known under the name by which it was asked. Use localhost or its"
                " address, or start it with --host NAME.\n",
                status_code=421,
            )
        path = request.url.path
        if not self._needs_login or session.user or any(path.startswith(each) for each in _OPEN):
            return None
        return log_in_first(request)


def log_in_first(request: Request) -> Response:
    """Leads a browser to the form, and from there back to what it asked for; tells a program."""
    if wants_json(request) or request.method not in ("GET", "HEAD"):
        return JSONResponse({"error": "log in first"}, status_code=401)
    path, query = request.url.path, request.url.query
    wanted = f"{path}?{query}" if query else path
    return RedirectResponse(url(LOGIN, next="" if wanted == "/" else wanted), status_code=303)


def cookie_name(settings: ConsoleSettings) -> str:
    """The cookie's name has the port, for browsers do not tell the ports of a host apart."""
    return f"rmqkit_console_{Address.parse(settings.listen).port}"


def set_cookie(request: Request, name: str, value: str) -> str:
    """A header that gives a session to a browser: for this site alone, and not for scripts; for TLS alone
    where the browser came by TLS, which the proxy before the console tells."""
    made = f"{name}={value}; Path=/; Max-Age={LIFETIME_MS // 1000}; HttpOnly; SameSite=Strict"
    by_tls = request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
    return f"{made}; Secure" if by_tls else made


__all__ = ["LOGIN", "MAX_BODY_BYTES", "Guard", "cookie_name", "log_in_first", "set_cookie", "wants_json"]
