"""The compiled run of sends gives what the run of values gives: the same records, units, keys and answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.protocol import batch
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.speedups import IN_USE
from tests.speedups.send_runs import COMPILED, HOSTS, MIXED, PURE, TOPICS, Send, outcome

pytestmark = pytest.mark.skipif(not IN_USE, reason="the compiled part does not run here")

names = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "DELAY", "x", "", "UNIQ_KEY_", "é", "__SHARDINGKEY"]
)
values = st.one_of(
    st.sampled_from(["false", "true", "", "A1", "a b", "50%d", "k\x01v", "\N{GREEK SMALL LETTER BETA}"]),
    st.text(alphabet="0123456789ABCDEF", min_size=32, max_size=32),
)
items = st.lists(st.tuples(names, values), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
texts = st.one_of(
    items,
    items.map(lambda text: f"{text}UNIQ_KEY\x01" + "0A" * 16),
    items.map(lambda text: f"{text}UNIQ_KEY\x01" + "0A" * 16 + "\x02"),
    st.text(alphabet="ab\x01\x02", max_size=12),
)
bodies = st.binary(min_size=1, max_size=300)


@st.composite
def sends_of(draw: st.DrawFn) -> Send:
    """One send, or one batch that may be damaged."""
    batched = draw(st.booleans())
    if batched:
        body = batch.encode(
            [
                batch.BatchItem(draw(st.integers(-9, 9)), draw(st.binary(max_size=60)), draw(texts).encode())
                for _ in range(draw(st.integers(1, 4)))
            ]
        )
        if draw(st.booleans()):
            at = draw(st.integers(0, len(body) - 1))
            body = body[:at] + draw(st.binary(max_size=3)) + body[at + 1 :]
    else:
        body = draw(st.one_of(bodies, st.binary(min_size=399, max_size=402)))
    header = SendMessageRequestHeaderV2(
        producer_group="g",
        topic=draw(st.sampled_from([*TOPICS, "unknown"])),
        queue_id=draw(st.integers(-1, 4)),
        sys_flag=draw(st.integers(-(2**31), 2**31 - 1)),
        born_timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        properties=draw(st.one_of(st.none(), texts)),
        reconsume_times=draw(st.one_of(st.none(), st.integers(0, 2**31 - 1))),
        batch=batched,
    )
    request = Command(
        320 if batched else 310, body=body, opaque=draw(st.integers(-(2**31), 2**31 - 1)), typed=header
    )
    return request, header, draw(st.integers(0, len(HOSTS) - 1))


@given(st.lists(sends_of(), min_size=1, max_size=8), st.integers(0, 12))
def test_a_compiled_run_is_a_run_of_values(given_sends: list[Send], changed: int) -> None:
    """Also with several connections, damaged batches, topics in turns, records across the ends of files, new
    queues, messages that Python built and one that a hook has changed."""
    pure = outcome(PURE, given_sends, changed)
    assert outcome(COMPILED, given_sends, changed) == pure
    assert outcome(MIXED, given_sends, changed) == pure
