"""Which rule decides."""

from __future__ import annotations

from functools import cmp_to_key
from random import Random

import pytest

from rmqkit_hook_acl.decide import NOBODY, Decisions, Need
from rmqkit_hook_acl.model import SUPER, Action, Entry, Policies, Resource, User, address_of
from tests.hooks.acl.kit import policies


def decisions(rules: Policies, *, user_type: str = "Normal") -> Decisions:
    made = Decisions()
    made.know({"u": User("u", "secret", user_type)}, {"u": rules})
    return made


@pytest.mark.parametrize(
    ("custom", "default", "rule"),
    [
        (["Topic:orders Pub Deny", "Topic:ord* Pub Allow"], [], "Custom policy Topic:orders Pub Deny"),
        (["Topic:o* Pub Deny", "Topic:ord* Pub Allow"], [], "Custom policy Topic:ord* Pub Allow"),
        (["Topic:* Pub Deny", "Topic:o* Pub Allow"], [], "Custom policy Topic:o* Pub Allow"),
        (["* All Deny", "Topic:* Pub Allow"], [], "Custom policy Topic:* Pub Allow"),
        (["* All Allow"], ["Topic:orders Pub Deny"], "Custom policy * All Allow"),
        (["Topic:orders Sub Allow"], ["Topic:* Pub Deny"], "Default policy Topic:* Pub Deny"),
        (["Topic:orders Pub Allow", "Topic:orders All Deny"], [], "Custom policy Topic:orders All Deny"),
        (["Group:orders Pub Allow"], [], "no policy matches"),
        (["Topic:orders Pub Allow 10.0.0.0/8"], [], "no policy matches"),
    ],
)
def test_the_order_of_policies(custom: list[str], default: list[str], rule: str) -> None:
    """Custom rules are asked before default ones, of those the one that says the resource most exactly, and a
    denial before an allowance."""
    found = decisions(policies(custom, default)).verdict(
        "u", Need("Topic", "orders", Action.PUB), "127.0.0.1"
    )
    assert found.rule == rule
    assert found.is_allowed is rule.endswith("Allow")


def test_super_users_and_unknown_ones() -> None:
    """A super user may do everything whatever the policies say, an unknown one nothing."""
    made = decisions(policies(["* All Deny"]), user_type=SUPER)
    need = Need("Topic", "orders", Action.PUB)
    assert made.verdict("u", need, "127.0.0.1").is_allowed
    assert made.verdict("v", need, "127.0.0.1") == NOBODY


def test_verdicts_are_kept_until_something_changes() -> None:
    """The same question is answered from the cache, which has a limit, and a change empties it."""
    made = decisions(policies(["Topic:* Pub Allow"]))
    made.keep = 2
    need = Need("Topic", "a", Action.PUB)
    first = made.verdict("u", need, "127.0.0.1")
    assert made.verdict("u", need, "10.0.0.1") is first
    for name in "bcd":
        made.verdict("u", Need("Topic", name, Action.PUB), "127.0.0.1")
    assert made.verdict("u", need, "127.0.0.1") == first
    made.know({"u": User("u", "secret")}, {"u": policies(["Topic:a Pub Deny"])})
    assert not made.verdict("u", need, "127.0.0.1").is_allowed


def test_sources_tell_questions_apart() -> None:
    """A verdict about one address is not that of another when a rule of the user names sources."""
    made = decisions(policies(["Topic:* Pub Allow 10.0.0.0/8"]))
    need = Need("Topic", "a", Action.PUB)
    assert made.verdict("u", need, "10.0.0.1").is_allowed
    assert not made.verdict("u", need, "11.0.0.1").is_allowed


def test_functions_decide_before_policies() -> None:
    """True and False decide, None leaves it to the next one; a function is asked each time, and never about
    super users."""
    asked: list[tuple[str, str, str, str]] = []
    said: dict[str, bool | None] = {}

    def allow(principal: str, action: str, resource: str, source: str) -> bool | None:
        asked.append((principal, action, resource, source))
        return said.get(action)

    made = decisions(policies(["Topic:* Pub Allow"]))
    made.rules = (("mine", allow),)
    need = Need("Topic", "a", Action.PUB | Action.SUB)
    assert made.verdict("u", need, "127.0.0.1").rule == "Custom policy Topic:* Pub Allow"
    assert asked == [("u", "Pub", "Topic:a", "127.0.0.1"), ("u", "Sub", "Topic:a", "127.0.0.1")]
    said.update(Pub=False)
    assert made.verdict("u", need, "127.0.0.1").is_allowed
    said.update(Sub=False)
    denied = made.verdict("u", need, "127.0.0.1")
    assert (denied.is_allowed, denied.rule) == (False, "function mine")
    said.update(Sub=True)
    assert made.verdict("u", need, "127.0.0.1") == (True, "function mine", "")
    before = len(asked)
    made.know({"u": User("u", "secret", SUPER)}, {})
    assert made.verdict("u", need, "127.0.0.1").is_allowed
    assert len(asked) == before


_NAMES = ["a", "ab", "abc", "abcd", "b", "ba"]
_RESOURCES = [
    "*",
    *(f"{kind}:{name}" for kind in ("Topic", "Group") for name in ["*", *_NAMES, "a*", "ab*", "abc*"]),
]
_HOSTS = ["127.0.0.1", "10.1.1.1", "10.2.2.2"]
_SOURCES = [(), (), ("10.0.0.0/8",), ("10.1.1.1",), ("127.0.0.0/8", "10.2.0.0/16")]


def _entries(random: Random) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            Resource.parse(random.choice(_RESOURCES)),
            Action(random.choice([1, 2, 3, 32, 34, 128])),
            random.choice(_SOURCES),
            random.random() < 0.6,
        )
        for _ in range(random.randrange(6))
    )


def _before(first: Entry, second: Entry) -> int:
    """The order of Apache's comparePolicyEntries, with the denial first as its comment says."""

    def rank(entry: Entry) -> tuple[bool, int, int, bool]:
        resource = entry.resource
        pattern = {"literal": 0, "prefix": 1, "any": 2}[resource.pattern]
        length = len(resource.name) if resource.pattern == "prefix" else 0
        return resource.type == "*", pattern, -length, entry.is_allowed

    return (rank(first) > rank(second)) - (rank(first) < rank(second))


def plain_verdict(rules: Policies, need: Need, host: str) -> bool:
    """The verdict by looking at every rule, as Apache's handler does."""

    def matches(entry: Entry) -> bool:
        resource = entry.resource
        about = resource.type == "*" or (
            resource.type == need.type
            and (
                resource.pattern == "any"
                or resource.name == need.name
                or (resource.pattern == "prefix" and need.name.startswith(resource.name))
            )
        )
        return about and entry.holds_for(need.actions, address_of(host))

    found = [entry for entry in rules.custom if matches(entry)] or [
        entry for entry in rules.default if matches(entry)
    ]
    return bool(found) and sorted(found, key=cmp_to_key(_before))[0].is_allowed


def test_ten_thousand_verdicts_equal_those_of_a_plain_search() -> None:
    """Indexes and cache never change a verdict."""
    random = Random(35)
    seen = set()
    for _ in range(100):
        rules = Policies(_entries(random), _entries(random))
        made = decisions(rules)
        for _ in range(100):
            need = Need(
                random.choice(["Topic", "Group"]),
                random.choice(_NAMES),
                Action(random.choice([1, 2, 35, 34])),
            )
            host = random.choice(_HOSTS)
            wanted = plain_verdict(rules, need, host)
            assert made.verdict("u", need, host).is_allowed is wanted, (rules, need, host)
            seen.add(wanted)
    assert seen == {True, False}
