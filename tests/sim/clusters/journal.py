"""What the brokers of a simulation have acknowledged, and the promises that this must keep."""

from __future__ import annotations

from collections import defaultdict

from attrs import define, field

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.sysflag import UNQUEUED
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import SendMessageHook, SendRun
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import ResponseCode
from tests.sim.clusters.machine import Process

#: Broker name, topic, queue and queue offset.
Place = tuple[str, str, int, int]


@define(eq=False)
class Journal:
    """The methods raise AssertionError at the first broken promise.

    places   what acknowledged messages and those that consumers could see have at each place: their bodies
    masters  who acknowledged in an epoch of a group
    bodies   what was acknowledged, by broker name
    finished places of leases whose acknowledgement was answered
    broken   promises that were broken in a hook
    """

    places: dict[Place, bytes] = field(factory=dict)
    masters: dict[tuple[str, int], str] = field(factory=dict)
    bodies: dict[str, set[bytes]] = field(factory=lambda: defaultdict(set))
    finished: set[Place] = field(factory=set)
    broken: list[str] = field(factory=list)
    _newest: dict[str, int] = field(factory=lambda: defaultdict(int))

    def acknowledged(self, group: str, member: str, epoch: int) -> None:
        """A member acknowledges something."""
        master = self.masters.setdefault((group, epoch), member)
        assert master == member, f"{member} and {master} acknowledge in epoch {epoch} of {group}"
        newest = self._newest[group]
        assert epoch >= newest, f"{member} acknowledges in epoch {epoch} of {group} after epoch {newest}"
        self._newest[group] = epoch

    def seen(self, place: Place, body: bytes) -> None:
        """A message is at this place for everybody."""
        known = self.places.setdefault(place, body)
        assert known == body, f"{place} is {body[:40]!r}, and was {known[:40]!r}"

    def leased(self, place: Place, body: bytes) -> None:
        """A message is leased to somebody."""
        self.seen(place, body)
        assert place not in self.finished, f"{place} was acknowledged, and is delivered again"

    def popped(self, place: Place) -> None:
        """The acknowledgement of a lease was answered."""
        self.finished.add(place)


class Acknowledgements(SendMessageHook):
    """Enters into the journal what one process acknowledges."""

    def __init__(self, journal: Journal, group: str, process: Process) -> None:
        self._journal = journal
        self._group = group
        self._process = process
        self._broker: Broker | None = None

    @hookimpl
    def rmqkit_register_send_message_hooks(self, register: Register[SendMessageHook], config: Config) -> None:
        register("journal", self)

    @hookimpl
    def rmqkit_broker_assembled(self, broker: Broker) -> None:
        self._broker = broker

    def after(self, sends: SendRun) -> None:
        if sends.code != ResponseCode.SUCCESS or self._process.is_dead:
            return
        assert self._broker is not None
        role, journal = self._broker.role, self._journal
        try:
            assert role.current is Role.MASTER, "a broker that is not a master acknowledges"
            journal.acknowledged(self._group, self._process.machine.name, role.epoch)
            for context in sends:
                for message, at in zip(context.messages, context.results, strict=True):
                    if not message.sys_flag & UNQUEUED:
                        place = self._group, message.topic, message.queue_id, at.queue_offset
                        journal.seen(place, bytes(message.body))
                    journal.bodies[self._group].add(bytes(message.body))
        except AssertionError as error:
            # The broker logs what a hook raises, and goes on.
            journal.broken.append(str(error))
