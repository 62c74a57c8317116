"""Finding the addresses of the name servers at run time (Java: DefaultTopAddressing, MQClientInstance;
behaviour sheet, A2).

Addresses are given as text, by a URL that answers with them, or by a function that returns them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable

import anyio
import anyio.to_thread
from attrs import frozen

from rmqkit.client.calling import called
from rmqkit.errors import ConfigError, NameServersUnreachable
from rmqkit.toolkit.address_server import LOOK_UP_S, addresses_at, split_addresses

NAMESRV_VARIABLE = "NAMESRV_ADDR"

#: Returns `host:port;host:port`, or several such texts. A plain function runs in a thread.
Discover = Callable[[], "Awaitable[str | Iterable[str]] | str | Iterable[str]"]
#: What a client takes: addresses, a URL `http://host/path`, a function; None is the environment's
#: NAMESRV_ADDR.
NameServerSource = str | Iterable[str] | Discover | None


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
                    found = await anyio.to_thread.run_sync(addresses_at, source, abandon_on_cancel=True)
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
