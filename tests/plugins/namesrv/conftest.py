"""A name server's processor and state with a clock moved by the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import define, field

from rmqkit.config import Config
from rmqkit.plugin.request import Peer, Ticket
from rmqkit.protocol.command import Command
from rmqkit.testing.peer import FakePeer
from rmqkit_namesrv.processor import NameServerProcessor
from rmqkit_namesrv.state import NameServerState


@define(slots=False)
class BrokerHarness:
    """A processor with its state; `now_ms` is its time."""

    now_ms: int = 0
    config: Config = field(factory=Config)

    def __attrs_post_init__(self) -> None:
        self.state = NameServerState(self.config, lambda: self.now_ms)
        self.processor = NameServerProcessor(self.state)
        self.peer = FakePeer()

    def ask(self, request: Command, peer: Peer | None = None) -> Command:
        """The answer of a handler that answers at once."""
        (outcome,) = self.processor.process([request], peer if peer is not None else self.peer)
        assert isinstance(outcome, Command)
        assert outcome.is_response
        assert outcome.opaque == request.opaque
        return outcome

    async def ask_waiting(self, request: Command) -> Command:
        """The answer of a handler that may wait."""
        (outcome,) = self.processor.process([request], self.peer)
        answer = await self.peer.answer_to(request) if isinstance(outcome, Ticket) else outcome
        assert isinstance(answer, Command)
        return answer


@pytest.fixture
def make_desk() -> Callable[[Config], BrokerHarness]:
    return lambda config: BrokerHarness(config=config)


@pytest.fixture
def desk() -> BrokerHarness:
    return BrokerHarness()
