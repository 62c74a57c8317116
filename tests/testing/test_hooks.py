"""The contracts of hooks find the fault of broken hooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from rmqkit.client.hooks import (
    ClientConsumeContext,
    ClientConsumeHook,
    ClientHook,
    ClientSendContext,
    ClientSendHook,
    FilterMessageContext,
    FilterMessageHook,
)
from rmqkit.errors import RequestRefused
from rmqkit.model.message import PutMessage
from rmqkit.model.message_type import MessageType
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hook_runner import SLOW_CALL_MS
from rmqkit.plugin.hooks import (
    ConsumeContext,
    ConsumeMessageHook,
    EachPutHook,
    EachSendHook,
    PutMessageHook,
    SendContext,
)
from rmqkit.plugin.later import Due, LaterDelivery
from rmqkit.plugin.request import Answers, Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol.command import Command
from rmqkit.testing import client_hooks
from rmqkit.testing.client_hooks import ClientHookContract
from rmqkit.testing.hooks import (
    ConsumeMessageHookContract,
    PutMessageHookContract,
    RpcHookContract,
    SendMessageHookContract,
)


class RaisesAtSends(EachSendHook):
    """Raises an error at the answers to sends."""

    def after_each(self, context: SendContext) -> None:
        raise ValueError("boom")


class RaisesAtPulls(ConsumeMessageHook):
    def before(self, context: ConsumeContext) -> None:
        raise ValueError("boom")


class RaisesAfter(RpcHook):
    def after(self, requests: Sequence[Command], answers: Answers, peer: Peer) -> None:
        raise ValueError("boom")


class Refuses(EachSendHook):
    def before_each(self, context: SendContext) -> None:
        raise RequestRefused(16, "no")


class NoCodes(RpcHook):
    def __init__(self, *codes: Any) -> None:
        self.codes = frozenset(codes) or None

    def before(self, requests: Sequence[Command], peer: Peer) -> None:
        raise RequestRefused(16, "no")


class Slow(EachSendHook):
    """Takes too long now and then."""

    def after_each(self, context: SendContext) -> None:
        end_s = thread_time() + (2 * SLOW_CALL_MS / 1000 if context.message_type is MessageType.ORDER else 0)
        while thread_time() < end_s:
            pass


class Forgets(EachPutHook):
    """Changes properties without changing their text."""

    def before_each(self, message: PutMessage) -> None:
        message.properties = message.properties | {"x": "y"}


class RefusesAll(PutMessageHook):
    """Refuses all messages that came together with a message it rejects."""

    def before_put(self, run: MessageRun) -> None:
        if any(message.topic.startswith("%RETRY%") for message in run):
            raise RequestRefused(16, "no")


class ClaimsMore(EachPutHook):
    """Claims a property without naming it among the wanted ones."""

    wants, claims = frozenset({"DELAY"}), frozenset({"TRAN_MSG"})

    def before_each(self, message: PutMessage) -> None:
        return


class Swallows(FilterMessageHook):
    def filter_messages(self, context: FilterMessageContext) -> None:
        context.messages.clear()


class Breaks(ClientSendHook, ClientConsumeHook):
    def after_send(self, context: ClientSendContext) -> None:
        raise ValueError("boom")

    def after_consume(self, context: ClientConsumeContext) -> None:
        raise ValueError("boom")


class MarksInVain(EachPutHook, LaterDelivery):
    """Does not recognise what it has marked."""

    def mark(self, message: PutMessage, due: Due, now_ms: int) -> bool:
        return True

    def before_each(self, message: PutMessage) -> None:
        return


def contract(kind: type[Any], hook: object) -> Any:
    """A contract over one hook."""
    return type("Broken", (kind,), {"make_hook": lambda self: hook})()


@pytest.mark.parametrize(
    ("kind", "hook", "fault"),
    [
        (SendMessageHookContract, RaisesAtSends(), "raised what it may not"),
        (SendMessageHookContract, Refuses(), "answers differently"),
        (SendMessageHookContract, Slow(), "the hook is slow"),
        (ConsumeMessageHookContract, RaisesAtPulls(), "raised what it may not"),
        (RpcHookContract, RaisesAfter(), "raised what it may not"),
        (RpcHookContract, NoCodes(), "answers differently"),
    ],
)
async def test_a_hook_that_does_harm_is_found(
    kind: type[Any], hook: object, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault shows in the broker's answers or in the error that is raised."""
    with pytest.raises(AssertionError, match=fault):
        await contract(kind, hook).test_a_broker_answers_as_without_the_hook(tmp_path, caplog)


def test_a_put_hook_that_does_harm_is_found() -> None:
    """A text that differs from the mapping, a refusal of other messages of the run, a claim to an unwanted
    property, and a message for later that is not kept fail the contract."""
    with pytest.raises(AssertionError):
        contract(PutMessageHookContract, Forgets()).test_what_it_leaves_can_be_stored()
    with pytest.raises(AssertionError, match="the hook refuses the neighbours as well"):
        contract(
            PutMessageHookContract, RefusesAll()
        ).test_messages_that_come_together_are_treated_one_by_one()
    with pytest.raises(AssertionError):
        contract(PutMessageHookContract, ClaimsMore()).test_its_claims_are_among_what_it_wants()
    with pytest.raises(AssertionError, match="the hook does not park what it has marked"):
        contract(PutMessageHookContract, MarksInVain()).test_what_it_marks_for_later_it_parks()


def test_an_rpc_hook_with_wrong_codes_is_found() -> None:
    """A hook that refuses although it declares no refusals is found as well."""
    with pytest.raises(AssertionError):
        contract(RpcHookContract, NoCodes("10")).test_its_codes_are_numbers()
    with pytest.raises(AssertionError, match="the hook refuses a request"):
        contract(RpcHookContract, NoCodes()).test_before_without_after()


@pytest.mark.parametrize(
    ("hook", "fault"), [(Swallows(), "sees something else"), (Breaks(), "does what it may not")]
)
async def test_a_client_hook_that_does_harm_is_found(
    hook: ClientHook,
    fault: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault shows in the results the application gets, or in the log."""

    class Broken(ClientHookContract):
        def make_hook(self) -> ClientHook:
            if isinstance(hook, Swallows):  # its messages would be waited for in vain
                monkeypatch.setattr(client_hooks, "PATIENCE_S", 0.1)
            return hook

    with pytest.raises(AssertionError, match=fault):
        await Broken().test_an_application_sees_what_it_sees_without_the_hook(tmp_path, caplog)
