"""Users, resources, actions and rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import RequestRefused
from rmqkit_hook_acl.model import (
    CUSTOM,
    DEFAULT,
    Action,
    Entry,
    Policies,
    Resource,
    User,
    action_names,
    actions_of,
    address_of,
)
from tests.hooks.acl.kit import entry


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("*", "*"),
        ("topic:orders", "Topic:orders"),
        ("Topic:*", "Topic:*"),
        ("Topic:or*", "Topic:or*"),
        ("Group:%RETRY%g", "Group:g"),
        ("Cluster:c", "Cluster:c"),
        ("Topic:a*b*", "Topic:a*"),
    ],
)
def test_resources_are_read_as_java_reads_them(text: str, shown: str) -> None:
    """A resource has a type, and a name, a beginning or neither; its text can be read again."""
    found = Resource.parse(text)
    assert str(found) == shown
    assert Resource.parse(shown) == found


@pytest.mark.parametrize("text", ["", "orders", "Queue:1", "Topic", "Topic:", ":x", "Topic: "])
def test_what_is_no_resource_is_refused(text: str) -> None:
    """The refusal shows the form."""
    with pytest.raises(RequestRefused, match="TYPE:NAME"):
        Resource.parse(text)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Any text is a resource that is shown and read again, or refused."""
    try:
        found = Resource.parse(text)
    except RequestRefused:
        return
    assert Resource.parse(str(found)) == found


def test_actions_are_taken_in_any_case() -> None:
    """Names come out as Java writes them; what no policy may have is refused."""
    assert action_names(actions_of(["PUB", "sub", " All "])) == ("Pub", "Sub", "All")
    for names in (["Any"], ["Unknown"], ["Write"], []):
        with pytest.raises(RequestRefused):
            actions_of(names)


def test_a_rule_holds_for_its_actions_and_sources() -> None:
    """A rule with sources holds for addresses in them alone, of the same family."""
    rule = entry("Topic:t Pub Allow 10.0.0.0/8 192.168.1.7 2001:db8::/32")
    for host, holds in (
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("192.168.1.7", True),
        ("192.168.1.8", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("no address", False),
    ):
        assert rule.holds_for(Action.PUB, address_of(host)) is holds, host
    assert not rule.holds_for(Action.SUB, address_of("10.1.2.3"))
    assert entry("Topic:t All Deny").holds_for(Action.LIST, None)
    with pytest.raises(RequestRefused, match="neither an address nor a network"):
        Entry(Resource("Topic", "t"), Action.PUB, ("10.0.0.0/33",))


def test_an_update_replaces_rules_about_the_same_resource() -> None:
    """Rules about other resources stay, and so do those of the other kind; a deletion removes one."""
    first = Policies().updated(CUSTOM, [entry("Topic:a Pub Allow"), entry("Topic:b Pub Allow")])
    changed = first.updated(CUSTOM, [entry("Topic:a Sub Deny"), entry("Topic:c Pub Allow")])
    assert [str(each) for each in changed.custom] == [
        "Topic:a Sub Deny",
        "Topic:b Pub Allow",
        "Topic:c Pub Allow",
    ]
    assert not changed.default
    both = changed.updated(DEFAULT, [entry("* Get Allow")])
    assert both.without(CUSTOM, Resource.parse("Topic:b")).custom[1] == changed.custom[2]
    assert not both.without(DEFAULT, Resource.parse("*")).default


def test_the_text_of_a_user_has_no_password() -> None:
    """What is logged of a user shows no secret."""
    assert "geheim" not in repr(User("u", "geheim"))
