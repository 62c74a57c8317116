"""Which hooks see which requests and answers."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.plugin.hook_runner import Hooks
from rmqkit.plugin.hooks import Refusals
from rmqkit.plugin.request import BROKER, NAME_SERVER, Answers, Peer
from rmqkit.plugin.request_hooks import EachRequestHook, RpcHook
from rmqkit.protocol.command import Command
from rmqkit.remoting.admission import guarding
from rmqkit.remoting.hooks_by_code import HooksByCode


class Checks(EachRequestHook):
    """Looks at requests only."""

    def before_each(self, request: Command, peer: Peer) -> None:
        return


class Observes(EachRequestHook):
    """Looks at answers, too."""

    def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
        return


class ObservesRuns(RpcHook):
    """Looks at the answers of a run."""

    codes = frozenset({7})

    def after(self, requests: object, answers: Answers, peer: Peer) -> None:
        return


class GuardsNameServers(Checks):
    servers = frozenset({NAME_SERVER})


class Impatient(RpcHook):
    """Looks at requests that have waited for a second."""

    patience_s = 1.0

    def waited(self, requests: Sequence[Command], peer: Peer, waited_s: float) -> Refusals | None:
        return None


def by_code(*hooks: RpcHook, server: str = BROKER) -> HooksByCode:
    return HooksByCode(guarding(Hooks.of("rpc hook", hooks), server))


def names(entries: object) -> list[str]:
    assert isinstance(entries, tuple)
    return [type(entry.hook).__name__ for entry in entries]


def test_a_hook_is_shown_what_it_looks_at() -> None:
    """Requests go to the hooks of their code with `before`, answers to those with `after`."""
    found = by_code(Checks(), Observes(), ObservesRuns())
    assert names(found.of(1).before) == ["Checks"]
    assert names(found.of(1).after) == ["Observes"]
    assert names(found.of(7).before) == ["Checks"]
    assert names(found.of(7).after) == ["Observes", "ObservesRuns"]


def test_requests_that_wait_are_shown_to_who_asks_for_them() -> None:
    """From the time on that the hook names; it costs those that do not wait nothing."""
    found = by_code(Checks(), Impatient())
    assert names(found.of(1).before) == ["Checks"]
    assert found.impatient(0.9) == ()
    assert names(found.impatient(1.0)) == ["Impatient"]


def test_neighbours_whose_answers_the_same_hooks_see_are_one_part() -> None:
    """A hook that only checks does not divide the answers of a run."""
    found = by_code(Checks(), ObservesRuns())
    requests = [Command(code=code) for code in (1, 2, 7, 7, 3)]
    assert [(names(entries), part) for entries, part in found.parts(requests)] == [
        ([], slice(0, 2)),
        (["ObservesRuns"], slice(2, 4)),
        ([], slice(4, 5)),
    ]


def test_a_hook_guards_the_servers_that_it_names() -> None:
    """A hook without `servers` guards all of them."""
    hooks = Checks(), GuardsNameServers()
    assert names(by_code(*hooks).of(1).before) == ["Checks"]
    assert names(by_code(*hooks, server=NAME_SERVER).of(1).before) == ["Checks", "GuardsNameServers"]
