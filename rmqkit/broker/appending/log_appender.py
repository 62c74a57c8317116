"""The single path into the store: put hooks, append, acknowledgement (Java:
DefaultMessageStore.putMessage)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

from rmqkit.broker.appending.acks import AckQueue
from rmqkit.broker.appending.claims import CLAIMABLE, unclaimed
from rmqkit.broker.dispatch.manager import Dispatching
from rmqkit.errors import MessageIllegal, RequestRefused, StoreError, StoreNotWritable
from rmqkit.model.message import PutMessage
from rmqkit.model.properties import TRANSACTION_PREPARED
from rmqkit.model.run import MessageRun, looks
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqkit.plugin.acks import Acknowledgement, Settled
from rmqkit.plugin.hook_runner import HookEntry, Hooks
from rmqkit.plugin.hooks import AlreadyStored, PutMessageHook
from rmqkit.plugin.store import Appended, MessageStore
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

#: The outcome for one message: its place, or the refusal.
Put = Appended | RequestRefused


def _untimed(seconds: float) -> None:
    """Ignores the time, for an owner without statistics."""


def _uncounted(messages: Sequence[PutMessage], results: Sequence[Appended]) -> None:
    """Ignores the messages, for an owner without statistics."""


class LogAppender:
    """Used by every processor and service that writes messages.

    timed    called with the seconds that each append took until it could be acknowledged
    counted  called with messages that were stored together and their places
    gate     that of `acks`: nothing is appended while it is closed
    """

    def __init__(
        self,
        hooks: Iterable[PutMessageHook],
        store: MessageStore,
        dispatching: Dispatching,
        acks: AckQueue,
        timed: Callable[[float], None] = _untimed,
        counted: Callable[[Sequence[PutMessage], Sequence[Appended]], None] = _uncounted,
    ) -> None:
        methods = ["before_put", "after_put"]
        self._hooks = Hooks.of("put message hook", hooks).checked(PutMessageHook, methods)
        claims = {name for hook in self._hooks for name in hook.claims}
        self._unclaimed = tuple(name for name in CLAIMABLE if name not in claims)
        #: Properties that hooks look for, or should; None when a hook wants every message.
        self.watched: frozenset[str] | None = None
        general = [hook for hook in self._hooks if hook.topics is None]
        if all(hook.wants for hook in general):
            self.watched = frozenset(self._unclaimed).union(*(hook.wants or () for hook in general))
        self._topics = [hook.topics for hook in self._hooks if hook.topics is not None]
        self._store = store
        self._positions = store.positions
        self._dispatching = dispatching
        self.acks = acks
        #: Whether a hook wants every message, or a condition may refuse any.
        self._checks_all = self.watched is None or bool(acks.refusing)
        self.gate = acks.gate
        self._timed = timed
        self._counted = counted
        self._listeners: dict[str, list[Callable[[], object]]] = {}

    def append(self, run: MessageRun, *, checked: bool = False) -> Sequence[Put]:
        """Store a run in order with one append of the store. Returns for each message its place or the
        refusal. A request is refused as a whole; the others are stored. Never raises. `checked` when hooks
        and conditions have seen the run."""
        if not checked and (run.special is None or run.special or self._checks_all):
            return self._append_checked(run)
        messages, store = run.messages, self._store
        if not messages:
            return []
        began = perf_counter()
        try:
            if self.gate.is_limited and (closed := self.gate.closed()) is not None:
                raise StoreNotWritable(closed)
            if self._positions.followed:
                start = store.end_offset
                results = store.append(messages)
                self._dispatching.stored(start, messages, results)
                self._positions.moved()
            else:
                results = store.append(messages)
        except Exception as error:  # noqa: BLE001 - an error of the store is the answer to its sends
            refusal = _refusal(error)
            parts = run.by_request() if refusal.code == ResponseCode.MESSAGE_ILLEGAL else ()
            if len(parts) < 2:
                return run.note([refusal] * len(run))
            return run.note([result for part in parts for result in self.append(part, checked=True)])
        self._counted(messages, results)
        _, start, size, _ = results[-1]
        acks = self.acks
        if not (acks.conditions or self.gate.is_limited) or start + size <= acks.passed(True):
            run.settled = True
            self._timed(perf_counter() - began)
        return results

    def watches(self, topic: str) -> bool:
        """Whether put hooks look for all messages of this topic at present."""
        return any(topic in topics for topics in self._topics)

    def _append_checked(self, run: MessageRun) -> Sequence[Put]:
        """Let hooks and conditions see a run, then store what they do not refuse."""
        watched = self.watched
        if watched is not None and run.special is None:
            run.special = [
                at
                for at, message in enumerate(run.messages)
                if not watched.isdisjoint(message.properties) or self.watches(message.topic)
            ]
        told: list[tuple[HookEntry[PutMessageHook], Sequence[int]]] = []
        refused = self._refusals(run, range(len(run)) if watched is None else run.special or (), told)
        if not refused:
            results = self.append(run, checked=True)
            self._tell(run)
        else:
            part = run.select([at for at in range(len(run)) if at not in refused])
            stored = iter(self.append(part, checked=True))
            self._tell(part)
            run.settled = part.settled
            results = [refused[at] if at in refused else next(stored) for at in range(len(run))]
        for entry, shown in told:
            entry.notify("after_put", run.select(shown), [results[at] for at in shown])
        return self._with_known(run, results) if refused else results

    def _with_known(self, run: MessageRun, results: Sequence[Put]) -> Sequence[Put]:
        """The results with the places of messages that hooks have found in the log; none of a request of
        which another message is refused."""
        known = {at: each for at, each in enumerate(results) if isinstance(each, AlreadyStored)}
        run.in_order = run.in_order and not known
        found = list(results)
        for at, each in known.items():
            found[at] = each.result()
        for at in known if run.requests is not None else ():
            request = run.request_at(at)
            refusal = next((found[each] for each in request if isinstance(found[each], RequestRefused)), None)
            if refusal is not None:
                found[request.start : request.stop] = [refusal] * len(request)
        return run.note(found)

    def listen(self, topic: str, function: Callable[[], object]) -> None:
        """Call a function after appends by hooks and services (`rmqkit.plugin.broker.Appender`)."""
        self._listeners.setdefault(topic, []).append(function)

    def unlisten(self, topic: str, function: Callable[[], object]) -> None:
        """Stop calling a function that listens."""
        self._listeners[topic].remove(function)

    def _tell(self, run: MessageRun) -> None:
        """Call the functions that listen to the topics of a run."""
        if self._listeners and run.messages:
            for topic in looks.topics_of(run.messages):
                for function in self._listeners.get(topic, ()):
                    function()

    def _refusals(
        self,
        run: MessageRun,
        special: Sequence[int],
        told: list[tuple[HookEntry[PutMessageHook], Sequence[int]]],
    ) -> dict[int, RequestRefused]:
        """Refusals by the acknowledgement conditions, and of special messages by put hooks and because of
        unclaimed properties. Hooks that want the results of messages are added to `told`."""
        refused: dict[int, RequestRefused] = {}
        refusal = self.acks.refusal()
        if refusal is not None:
            waiting = [at for at, message in enumerate(run) if message.wait]
            refused = {each: refusal for at in waiting for each in run.request_at(at)}
        for entry in self._hooks.entries:
            wants, topics = entry.hook.wants, entry.hook.topics
            shown = [
                at
                for at in special
                if at not in refused
                and not (wants and wants.isdisjoint(run[at].properties))
                and (topics is None or run[at].topic in topics)
            ]
            if shown:
                part = run if len(shown) == len(run) else run.select(shown)
                for at, reason in entry.refusals("before_put", part).items():
                    if isinstance(reason, AlreadyStored):
                        refused[shown[at]] = reason
                    else:
                        refused.update(dict.fromkeys(run.request_at(shown[at]), reason))
                if type(entry.hook).after_put is not PutMessageHook.after_put:
                    told.append((entry, shown))
        for at in special:
            if at not in refused and (missing := self._missing(run[at])) is not None:
                refused.update(dict.fromkeys(run.request_at(at), missing))
        return refused

    def _missing(self, message: PutMessage) -> RequestRefused | None:
        """The refusal of a message that requires a missing plugin. One that was committed keeps the property
        of its prepared form, and requires nothing for it."""
        properties: Mapping[str, str] = message.properties
        if TRANSACTION_PREPARED in properties and message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            properties = {name: value for name, value in properties.items() if name != TRANSACTION_PREPARED}
        return self.unclaimed(properties)

    def unclaimed(self, properties: Mapping[str, str]) -> RequestRefused | None:
        """The refusal of a message with these properties if one of them requires a missing plugin."""
        for name in self._unclaimed:
            if name in properties and (name != TRANSACTION_PREPARED or properties[name].lower() == "true"):
                return unclaimed(name)
        return None

    def append_durably(self, run: MessageRun) -> Acknowledgement:
        """Append a run, with an acknowledgement of these messages alone (`rmqkit.plugin.broker.Appender`)."""
        results = self.append(run)
        acknowledgement = Acknowledgement(results)
        stored = [at for at in range(len(run)) if at not in run.refused]
        if not stored and results:
            acknowledgement.settle(run.refused[0])
        elif not stored or run.settled:
            acknowledgement.settle(ResponseCode.SUCCESS)
        else:
            last = run.last_of([results[at] for at in stored])
            assert isinstance(last, Appended), "it is not among the refused"
            self.when_settled(any(run[at].wait for at in stored), last, acknowledgement.settle)
        return acknowledgement

    def are_settled(self, waits: Sequence[bool], results: Sequence[Appended]) -> list[bool]:
        """Whether everything up to each of these messages may be acknowledged now, to senders that wait for
        the conditions (PutMessage.wait) or do not."""
        passed = self.acks.passed(False), self.acks.passed(True)
        return [_end(at) <= passed[wait] for wait, at in zip(waits, results, strict=True)]

    def when_settled(self, wait: bool, at: Appended, then: Settled) -> None:
        """Call `then` when everything up to a stored message may be acknowledged to senders that `wait` for
        the conditions or do not, or when a condition has failed."""
        began = perf_counter()

        def settled(result: int | RequestRefused) -> None:
            self._timed(perf_counter() - began)
            then(result)

        self.acks.add(_end(at), wait, settled)

    async def settle_everything(self) -> None:
        """Wait until everything stored so far is as safe as an acknowledged message. Raises StoreError."""
        await self.acks.settle_everything()


def _refusal(error: Exception) -> RequestRefused:
    """The answer to sends that the store did not take."""
    if isinstance(error, MessageIllegal):
        refusal = RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error))
    elif isinstance(error, StoreError):
        refusal = RequestRefused(error.code, str(error))
    else:
        _log.exception("the store failed at an append")
        refusal = RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the store failed: {type(error).__name__}: {error}"
        )
    refusal.__cause__ = error
    return refusal


def _end(at: Appended) -> int:
    """The log offset after a message."""
    return at.physical_offset + at.size_bytes
