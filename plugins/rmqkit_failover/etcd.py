"""etcd as coordinator, by the JSON gateway of its version 3 interface (etcd 3.4 and later)."""

from __future__ import annotations

import logging
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec
import trio

from rmqkit_failover.coordinator import Coordinator, CoordinatorError, Entry, LeaseLost, Put, Snapshot
from rmqkit_failover.watching import PAUSE_S, snapshots

_log = logging.getLogger(__name__)
# It logs each request as information.
logging.getLogger("httpx").setLevel(logging.WARNING)
#: An answer of etcd, and one message of a watch, have at most this many bytes.
MAX_ANSWER_BYTES = 1024 * 1024
#: gRPC status codes.
_NOT_FOUND = 5
_UNAUTHENTICATED = 16
T = TypeVar("T", bound=msgspec.Struct)


class _Header(msgspec.Struct):
    revision: int


class _KeyValue(msgspec.Struct):
    key: str
    mod_revision: int
    value: str = ""
    lease: int = 0


class _RangeAnswer(msgspec.Struct):
    header: _Header
    kvs: list[_KeyValue] = []


class _TxnAnswer(msgspec.Struct):
    header: _Header
    succeeded: bool = False


class _LeaseAnswer(msgspec.Struct):
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class _KeepAliveAnswer(msgspec.Struct):
    result: _LeaseAnswer


class _TokenAnswer(msgspec.Struct):
    token: str = ""


class _ErrorAnswer(msgspec.Struct):
    message: str = ""
    code: int = 0


class _NoAnswer(msgspec.Struct):
    """An answer of which nothing is needed."""


class EtcdCoordinator(Coordinator):
    """The keys with one prefix in an etcd cluster.

    endpoints  addresses as in `http://10.0.0.1:2379`; the next one is used when one is not reached
    timeout_s  limit for one call
    tls        for `https://` addresses
    user       name and password, where etcd wants them
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._user = user
        self._token = ""
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity"},
            timeout=httpx.Timeout(timeout_s),
            verify=tls if tls is not None else False,
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def grant(self, time_s: int) -> int:
        return (await self._call("lease/grant", {"TTL": time_s}, _LeaseAnswer)).id

    async def renew(self, lease: int) -> None:
        found = await self._call("lease/keepalive", {"ID": lease}, _KeepAliveAnswer)
        if found.result.ttl <= 0:
            raise LeaseLost(f"etcd: lease {lease} is over")

    async def revoke(self, lease: int) -> None:
        try:
            await self._call("lease/revoke", {"ID": lease}, _NoAnswer)
        except LeaseLost:
            return

    async def read(self) -> Snapshot:
        found = await self._call("kv/range", self._range, _RangeAnswer)
        try:
            entries = {
                b64decode(each.key, validate=True).decode().removeprefix(self._prefix): Entry(
                    b64decode(each.value, validate=True), each.mod_revision, each.lease
                )
                for each in found.kvs
            }
        except ValueError as error:
            raise CoordinatorError(f"etcd: a key or value that cannot be decoded: {error}") from error
        return Snapshot(found.header.revision, entries)

    async def write(self, conditions: Mapping[str, int], changes: Sequence[Put]) -> int | None:
        compare = [
            {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            for key, revision in conditions.items()
        ]
        puts = [
            {
                "requestPut": {
                    "key": self._key(change.key),
                    "value": _text(change.value),
                    "lease": change.lease,
                }
            }
            for change in changes
        ]
        found = await self._call("kv/txn", {"compare": compare, "success": puts}, _TxnAnswer)
        return found.header.revision if found.succeeded else None

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Snapshot]]:
        return snapshots(self.read, self._follow)

    @property
    def _range(self) -> dict[str, str]:
        """All keys with the prefix: up to the next text of its length."""
        prefix = self._prefix.encode()
        return {"key": _text(prefix), "range_end": _text(prefix[:-1] + bytes([prefix[-1] + 1]))}

    def _key(self, key: str) -> str:
        return _text((self._prefix + key).encode())

    # Requests.

    async def _call(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """One call. The next endpoint is tried only when a connection could not be made, for a transaction
        must not be made twice. Raises CoordinatorError."""
        try:
            with trio.fail_after(self._timeout_s):
                return await self._try(path, body, kind)
        except trio.TooSlowError:
            self._next_endpoint()
            raise CoordinatorError(f"etcd does not answer within {self._timeout_s:g} s") from None

    async def _try(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        # Once more than there are endpoints, for a token may be old.
        for _ in range(len(self._endpoints) + 1):
            try:
                if self._user is not None and not self._token:
                    await self._authenticate(self._user)
                return await self._ask(path, body, kind)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = f"etcd at {self._endpoints[0]} is not reached: {error}"
                self._next_endpoint()
            except _Unauthenticated as error:
                failure = str(error)
                self._token = ""
            except httpx.HTTPError as error:
                self._next_endpoint()
                raise CoordinatorError(f"etcd: {error or type(error).__name__}") from error
        raise CoordinatorError(failure)

    def _next_endpoint(self) -> None:
        self._endpoints.append(self._endpoints.pop(0))

    async def _authenticate(self, user: tuple[str, str]) -> None:
        """A refused name or password is an error like every other; it does not contain them."""
        name, password = user
        found = await self._ask("auth/authenticate", {"name": name, "password": password}, _TokenAnswer)
        self._token = found.token

    async def _ask(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        """The answer of etcd to one request. Raises CoordinatorError and the errors of httpx."""
        async with self._request(path, body) as response:
            data = b""
            async for piece in response.aiter_raw():
                # What follows is read until the time of the call is over, and not kept.
                if len(data) <= MAX_ANSWER_BYTES:
                    data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise CoordinatorError(f"etcd: an answer of more than {MAX_ANSWER_BYTES} bytes")
        if response.status_code != httpx.codes.OK:
            raise self._refusal(response.status_code, data)
        return _decoded(data, kind)

    @asynccontextmanager
    async def _request(
        self, path: str, body: Mapping[str, Any], timeout: httpx.Timeout | None = None
    ) -> AsyncIterator[httpx.Response]:
        request = self._client.build_request(
            "POST",
            f"{self._endpoints[0]}/v3/{path}",
            content=msgspec.json.encode(body),
            headers={"Authorization": self._token} if self._token else {},
            timeout=timeout or self._client.timeout,
        )
        request.stream = _Body(request.content)
        response = await self._client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    def _refusal(self, status: int, data: bytes) -> CoordinatorError:
        try:
            found = _decoded(data, _ErrorAnswer)
        except CoordinatorError:
            return CoordinatorError(f"etcd: HTTP status {status}")
        if found.code == _NOT_FOUND:
            return LeaseLost(f"etcd: {found.message}")
        if found.code == _UNAUTHENTICATED:
            return _Unauthenticated(f"etcd: {found.message}")
        return CoordinatorError(f"etcd: {found.message or f'HTTP status {status}'}")

    # The watch.

    async def _follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` for each message of a watch, until cancelled. Without a watch the keys are read at
        an interval."""
        while True:
            try:
                await self._follow_once(changed)
            except (httpx.HTTPError, CoordinatorError) as error:
                _log.debug("failover: the watch ended: %s", error)
            await trio.sleep(PAUSE_S)

    async def _follow_once(self, changed: Callable[[], None]) -> None:
        timeout = httpx.Timeout(self._timeout_s, read=None)
        async with self._request("watch", {"create_request": self._range}, timeout) as response:
            if response.status_code != httpx.codes.OK:
                raise CoordinatorError(f"etcd: HTTP status {response.status_code}")
            async for _ in response.aiter_raw():
                changed()


class _Body(httpx.AsyncByteStream):
    """The body of a request. That of httpx is an asynchronous generator, which is left behind suspended when
    a request is cancelled while it is sent."""

    def __init__(self, data: bytes) -> None:
        self._left = [data]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


class _Unauthenticated(CoordinatorError):
    """etcd wants a new token; the call was not carried out."""


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(data: bytes, kind: type[T]) -> T:
    """Numbers of 64 bits come as texts. Raises CoordinatorError."""
    try:
        return msgspec.convert(msgspec.json.decode(data), kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CoordinatorError(f"etcd: an answer that is not understood: {error}") from error
