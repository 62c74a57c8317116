"""The filters of groups, as consumers register them (Java: FilterClassManager)."""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_FILTER_CLASSES, MAX_REGISTERED_TEXT_LENGTH
from rmqkit.log_limit import limited_logger
from rmqkit.plugin.filter import CompiledFilter, FilterServer
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RegisterMessageFilterClassRequestHeader

_log = limited_logger(__name__)


class FilterClasses(EachRequest):
    """Answers REGISTER_MESSAGE_FILTER_CLASS. A class is an installed filter in Python, by its name, with an
    empty source: this server runs no code of consumers.

    The least recently registered filter is removed when there are too many; consumers register again with
    every heartbeat.
    """

    def __init__(self, filters: FilterServer) -> None:
        self._filters = filters
        self._compiled: dict[tuple[str, str], tuple[str, CompiledFilter]] = {}

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
            _log.warning("%s sent the source of a filter class, refused", peer.remote_text)
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the class {name[:200]!r} is refused: this filter server runs no code that consumers send."
                " Subscribe with the name of a filter that is installed beside the broker (entry point group"
                " rmqkit.filters), and with an empty source",
            )
        known = self._compiled.pop((group, topic), None)
        if known is None or known[0] != name:
            known = name, self._compile(name, group, topic)
            _log.info("group %s filters topic %s with %s", group, topic, name)
        self._compiled[group, topic] = known
        while len(self._compiled) > MAX_FILTER_CLASSES:
            del self._compiled[next(iter(self._compiled))]
        return answer(request)

    def of(self, group: str, topic: str) -> CompiledFilter:
        """The filter of a group. Raises RequestRefused when none is registered."""
        found = self._compiled.get((group, topic))
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Find Filter class failed, group {group!r} has not registered a filter for topic {topic!r}",
            )
        return found[1]

    def _compile(self, name: str, group: str, topic: str) -> CompiledFilter:
        try:
            return self._filters.compile(self._filters.subscription(topic, name, 0), group)
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the filter {name[:200]!r}: {error}"
            ) from error
