"""Finding the addresses of the name servers at run time (Java: DefaultTopAddressing, MQClientInstance;
behaviour sheet, A2).

Addresses are given as text, by a URL that answers with them, or by a function that returns them.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from attrs import frozen

from rmqkit.client.calling import called
from rmqkit.errors import ConfigError, NameServersUnreachable
from rmqkit.plugin.address import Address

NAMESRV_VARIABLE = "NAMESRV_ADDR"
#: Limits of one look-up: time, and size of an HTTP answer.
LOOK_UP_S = 3.0
MAX_ANSWER_BYTES = 64 * 1024

#: Returns `host:port;host:port`, or several such texts. A plain function runs in a thread.
Discover = Callable[[], "Awaitable[str | Iterable[str]] | str | Iterable[str]"]
#: What a client takes: addresses, a URL `http://host/path`, a function; None is the environment's
#: NAMESRV_ADDR.
NameServerSource = str | Iterable[str] | Discover | None


def split_addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`, or in several such texts, each once."""
    texts = [given] if isinstance(given, str) else list(given)
    parts = [part.strip() for text in texts for part in text.replace(",", ";").split(";")]
    return tuple(dict.fromkeys(part for part in parts if part))


@frozen
class Discovery:
    """Looks the addresses up: by HTTP if `source` is a URL, else by calling it."""

    source: str | Discover

    async def look_up(self) -> tuple[str, ...]:
        """The addresses now. Raises NameServersUnreachable with the reason."""
        source = self.source
        shown = source if isinstance(source, str) else getattr(source, "__qualname__", repr(source))
        try:
            with anyio.fail_after(LOOK_UP_S):
                if isinstance(source, str):
                    text = await anyio.to_thread.run_sync(_fetch, source, abandon_on_cancel=True)
                    found = _plain_addresses(text)
                else:
                    found = split_addresses(await called(source))
        except TimeoutError as error:
            raise NameServersUnreachable(f"{shown} names no name servers within {LOOK_UP_S:.0f} s") from error
        except Exception as error:
            raise NameServersUnreachable(f"{shown} names no name servers: {error!r}") from error
        if not found:
            raise NameServersUnreachable(f"{shown} names no name servers: its answer is empty")
        return found


def name_server_source(namesrv: NameServerSource) -> tuple[tuple[str, ...], Discovery | None]:
    """The addresses that are given, or how to find them. Raises ConfigError when there is neither."""
    given = os.environ.get(NAMESRV_VARIABLE, "") if namesrv is None else namesrv
    if callable(given):
        return (), Discovery(given)
    if isinstance(given, str) and _is_url(given.strip()):
        return (), Discovery(given.strip())
    addresses = split_addresses(given)
    if not addresses:
        raise ConfigError(
            f"no name server is configured: use Client('host:9876'), or set {NAMESRV_VARIABLE}=host:9876"
        )
    urls = [address for address in addresses if _is_url(address)]
    if urls:
        raise ConfigError(f"{urls[0]} names the name servers, so there can be no further address beside it")
    return addresses, None


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _fetch(url: str) -> str:
    """The first line of the answer to a GET, which must have status 200. Redirects are not followed, and
    proxies of the environment are not used, as in Java."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LOOK_UP_S)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with closing(connection):
        connection.request("GET", target, headers={"Accept": "text/plain"})
        with connection.getresponse() as response:
            if response.status != http.client.OK:
                raise OSError(f"status {response.status}")
            body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise OSError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    lines = body.decode().splitlines()
    return lines[0].strip() if lines else ""


def _plain_addresses(text: str) -> tuple[str, ...]:
    """The addresses of an HTTP answer, which may name hosts and ports only. Raises ValueError otherwise."""
    found = split_addresses(text)
    for address in found:
        parsed = Address.parse(address)
        if "://" in address or not parsed.port:
            raise ValueError(f"{address!r} is not of the form host:port")
    return found
