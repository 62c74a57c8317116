"""The filters of groups, as consumers register them (Java: FilterClassManager)."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from zlib import crc32

import trio
from attrs import frozen

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_REGISTERED_TEXT_LENGTH
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RegisterMessageFilterClassRequestHeader
from rmqkit_filter_server.limits import MAX_FILTER_CLASSES, MAX_FILTER_MODULES, MAX_WAITING_FILTER_MODULES
from rmqkit_filter_server.web_assembly import FilterModules, ModuleRefused

_log = limited_logger(__name__)


@frozen
class Registered:
    """The filter of a group for a topic. `digest` is the SHA-256 of its module, empty for an installed
    filter."""

    name: str
    digest: bytes
    compiled: CompiledFilter


class FilterClasses(EachRequest):
    """Answers REGISTER_MESSAGE_FILTER_CLASS. A class is an installed filter in Python, by its name, with an
    empty source; or, with `modules`, one that the request contains as a module of WebAssembly. No other code
    of consumers is run.

    The least recently registered filter is removed when there are too many; consumers register again with
    every heartbeat.
    """

    def __init__(self, filters: FilterServer, modules: FilterModules | None = None) -> None:
        self._filters = filters
        self._modules = modules
        self._known: dict[tuple[str, str], Registered] = {}
        self._turn = trio.Lock()
        self._waiting = 0

    def handle(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(RegisterMessageFilterClassRequestHeader)
        group, topic, name = header.consumer_group, header.topic, header.class_name
        for text in (group, topic):
            if not text or len(text) > MAX_REGISTERED_TEXT_LENGTH:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"a group and a topic have 1 to {MAX_REGISTERED_TEXT_LENGTH} characters",
                )
        if request.body:
            return self._uploaded(request, header, peer)
        known = self._known.get((group, topic))
        if known is None or (known.name, known.digest) != (name, b""):
            known = Registered(name, b"", self._compile(name, group, topic))
            _log.info("group %s filters topic %s with %s", group, topic, name)
        self._keep((group, topic), known)
        return answer(request)

    def of(self, group: str, topic: str) -> CompiledFilter:
        """The filter of a group. Raises RequestRefused when none is registered."""
        found = self._known.get((group, topic))
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Find Filter class failed, group {group!r} has not registered a filter for topic {topic!r}",
            )
        return found.compiled

    def _compile(self, name: str, group: str, topic: str) -> CompiledFilter:
        try:
            return self._filters.compile(self._filters.subscription(topic, name, 0), group)
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the filter {name[:200]!r}: {error}"
            ) from error

    def _keep(self, key: tuple[str, str], found: Registered) -> None:
        """Make it the most recent one, and forget the least recent ones."""
        self._known.pop(key, None)
        self._known[key] = found
        uploaded = [each for each, other in self._known.items() if other.digest] if found.digest else []
        for each in uploaded[: max(0, len(uploaded) - MAX_FILTER_MODULES)]:
            del self._known[each]
        while len(self._known) > MAX_FILTER_CLASSES:
            del self._known[next(iter(self._known))]

    # Modules that consumers send.

    def _uploaded(
        self, request: Command, header: RegisterMessageFilterClassRequestHeader, peer: Peer
    ) -> Outcome:
        """Take an uploaded module. One that is known already is not compiled again. Raises RequestRefused."""
        name, modules = header.class_name[:200], self._modules
        if modules is None:
            _log.warning("%s sent the source of a filter class, refused", peer.remote_text)
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the class {name!r} is refused: this filter server runs no code that consumers send."
                " Subscribe with the name of a filter that is installed beside the broker (entry point group"
                " rmqkit.filters), and with an empty source. Modules of WebAssembly are accepted with"
                " webAssembly = true in the table [plugins.filter-server]",
            )
        if crc32(request.body) != header.class_crc & 0xFFFFFFFF:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the CRC-32 of the class {name!r} is not that of its source"
            )
        try:
            modules.check(request.body)
        except ModuleRefused as error:
            _log.warning("%s sent the class %s, refused: %s", peer.remote_text, name, error)
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the class {name!r} is refused: {error}"
            ) from None
        key, digest = (header.consumer_group, header.topic), sha256(request.body).digest()
        if self._refreshed(key, header.class_name, digest):
            return answer(request)
        if self._waiting >= MAX_WAITING_FILTER_MODULES:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"{self._waiting} modules wait to be compiled already; try again"
            )
        return peer.answer_async(request, partial(self._upload, modules, request, header, digest))

    def _refreshed(self, key: tuple[str, str], name: str, digest: bytes) -> bool:
        """Whether this very module is known; it becomes the most recent one."""
        known = self._known.get(key)
        if known is None or (known.name, known.digest) != (name, digest):
            return False
        self._keep(key, known)
        return True

    async def _upload(
        self,
        modules: FilterModules,
        request: Command,
        header: RegisterMessageFilterClassRequestHeader,
        digest: bytes,
    ) -> Command:
        """Compile a module, one at a time. Raises RequestRefused."""
        name, group, topic = header.class_name, header.consumer_group, header.topic
        self._waiting += 1
        try:
            async with self._turn:
                if not self._refreshed((group, topic), name, digest):
                    title = f"the filter {name[:200]!r} of group {group!r}"
                    compiled = await modules.compile(title, request.body)
                    self._keep((group, topic), Registered(name, digest, compiled))
                    _log.info(
                        "group %s filters topic %s with %s, a module of %d bytes",
                        group,
                        topic,
                        name[:200],
                        len(request.body),
                    )
        except ModuleRefused as error:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the module {name[:200]!r}: {error}"
            ) from None
        finally:
            self._waiting -= 1
        return answer(request)
