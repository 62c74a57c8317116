"""The definitions of RocketMQ's messages."""

from __future__ import annotations

import subprocess
import sys

from rmqkit_grpc.messages import CODE_NAMES, V2, Code

_BESIDE_THE_CLIENT = """
from rmqkit_grpc.messages import V2
from rocketmq.grpc_protocol import definition_pb2, service_pb2

{check}
"""

_SAME = """
def flat(message):
    return sorted(
        (each.number, each.name, each.type, each.is_repeated, each.has_presence,
         each.message_type and each.message_type.full_name.rpartition(".")[2],
         each.enum_type and each.enum_type.full_name.rpartition(".")[2])
        for each in message.fields
    )

compared = 0
for module in (definition_pb2, service_pb2):
    for name, theirs in module.DESCRIPTOR.message_types_by_name.items():
        ours = V2.messages[name].DESCRIPTOR
        expected = [each for each in flat(theirs)]
        found = [each for each in flat(ours) if each[0] in {number for number, *_ in expected}]
        names = {"Policy": "OffsetPolicy"}
        expected = [(*rest, names.get(enum, enum)) for *rest, enum in expected]
        assert [tuple(each) for each in found] == [tuple(each) for each in expected], (name, found, expected)
        compared += 1
    for name, theirs in module.DESCRIPTOR.enum_types_by_name.items():
        assert V2.enums[name].items() >= {(v.name, v.number) for v in theirs.values}, name
assert compared > 50, compared
"""


def test_the_official_client_may_live_in_the_same_process() -> None:
    """Its definitions, under the same names in protobuf's own pool, agree with ours in every field."""
    program = _BESIDE_THE_CLIENT.format(check=_SAME)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_codes_that_are_sent_are_defined() -> None:
    """Each has the name and the number of the definitions."""
    ours = {name: value for name, value in vars(Code).items() if name.isupper()}
    assert ours.items() <= V2.enums["Code"].items()
    assert CODE_NAMES[Code.OK] == "OK"
