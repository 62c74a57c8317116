"""The addresses of name servers by HTTP, from a server that answers with them (Java: DefaultTopAddressing;
behaviour sheet, A2)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from urllib.parse import urlsplit

from rmqkit.plugin.address import Address

#: Limits of one look-up: time, and size of the answer.
LOOK_UP_S = 3.0
MAX_ANSWER_BYTES = 64 * 1024


def url_of(domain: str, subgroup: str) -> str:
    """The URL in which Java's settings result. A domain may contain a port."""
    port = "" if ":" in domain else ":8080"
    return f"http://{domain}{port}/rocketmq/{subgroup}"


def addresses_at(url: str) -> tuple[str, ...]:
    """The addresses that a GET of the URL is answered with. Blocks. Raises OSError, and ValueError for an
    answer without addresses."""
    found = split_addresses(_first_line(url))
    for address in found:
        parsed = Address.parse(address)
        if "://" in address or not parsed.port:
            raise ValueError(f"{address!r} is not of the form host:port")
    if not found:
        raise ValueError("the answer is empty")
    return found


def split_addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`, or in several such texts, each once."""
    texts = [given] if isinstance(given, str) else list(given)
    parts = [part.strip() for text in texts for part in text.replace(",", ";").split(";")]
    return tuple(dict.fromkeys(part for part in parts if part))


def _first_line(url: str) -> str:
    """The first line of an answer with status 200. Redirects are not followed, and proxies of the environment
    are not used, as in Java. Raises OSError."""
    # Imported here: most clients and brokers are told their name servers, and start without it.
    import http.client

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LOOK_UP_S)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with closing(connection):
            connection.request("GET", target, headers={"Accept": "text/plain"})
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise OSError(f"status {response.status}")
                body = response.read(MAX_ANSWER_BYTES + 1)
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from error
    if len(body) > MAX_ANSWER_BYTES:
        raise OSError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    lines = body.decode().splitlines()
    return lines[0].strip() if lines else ""
