"""Pairs of topics and groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.broker.tables.pairs import Pairs

_names = st.sampled_from("abc")


@given(st.lists(st.tuples(st.booleans(), _names, _names)))
def test_pairs_are_found_by_topic_and_by_group(steps: list[tuple[bool, str, str]]) -> None:
    """After any additions and removals, every look-up agrees with a plain set of pairs."""
    pairs, model = Pairs(), set[tuple[str, str]]()
    for add, topic, group in steps:
        if add:
            pairs.add(topic, group)
            model.add((topic, group))
        else:
            pairs.discard(topic, group)
            model.discard((topic, group))
    assert sorted(pairs) == sorted(model)
    assert pairs.groups() == {group for _, group in model}
    for name in "abc":
        assert set(pairs.groups_of(name)) == {group for topic, group in model if topic == name}
        assert set(pairs.topics_of(name)) == {topic for topic, group in model if group == name}
