"""Bodies with tables whose keys are queues or numbers, decoded by each generation of Apache's Java client.

RocketMQ 5.5 decodes them with fastjson2, earlier versions with fastjson 1, and the two accept different
texts.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import ConsumerOffsetFile
from rmqkit.protocol import loose_json
from rmqkit.protocol.headers import LockBatchMqResponseBody
from tests import vectors
from tests.interop.builds import JAVA_CLIENT_VERSIONS, BuildError, java_client, tool

FIRST, SECOND = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
ROW, OTHER_ROW = ["MessageQueue", ["T", "b", 0]], ["MessageQueue", ["T", "b", 1]]

#: Class -> the body as rmqkit's servers write it, and the expected result of Java: [class of the key, key,
#: value] for each row of the table.
WRITTEN: dict[str, tuple[bytes, dict[str, Any]]] = {
    "TopicStatsTable": (
        loose_json.dumps(
            {
                "offsetTable": {FIRST: {"lastUpdateTimestamp": 9, "maxOffset": 5, "minOffset": 1}},
                "topicPutTps": 0.0,
            },
            raw_keys=True,
        ),
        {"OffsetTable": [[*ROW, {"LastUpdateTimestamp": 9, "MaxOffset": 5, "MinOffset": 1}]]},
    ),
    "ConsumeStats": (
        loose_json.dumps(
            {"consumeTps": 0.0, "offsetTable": {FIRST: {"brokerOffset": 5, "consumerOffset": 2}}},
            raw_keys=True,
        ),
        {"OffsetTable": [[*ROW, {"BrokerOffset": 5, "ConsumerOffset": 2}]]},
    ),
    "ResetOffsetBody": (
        loose_json.dumps({"offsetTable": {FIRST: 11, SECOND: 12}}, raw_keys=True),
        {"OffsetTable": [[*ROW, 11], [*OTHER_ROW, 12]]},
    ),
    "GetConsumerStatusBody": (
        loose_json.dumps({"consumerTable": {"c@1": {FIRST: 11}}, "messageQueueTable": {}}, raw_keys=True),
        {"MessageQueueTable": [], "ConsumerTable": [["String", "c@1", [[*ROW, 11]]]]},
    ),
    "ConsumerRunningInfo": (
        loose_json.dumps(
            {"mqTable": {FIRST: {"commitOffset": 4}}, "properties": {}, "subscriptionSet": []}, raw_keys=True
        ),
        {"MqTable": [[*ROW, {"CommitOffset": 4}]]},
    ),
    "LockBatchResponseBody": (
        loose_json.dumps(LockBatchMqResponseBody(lock_ok_mq_set=[FIRST])),
        {"LockOKMQSet": [ROW]},
    ),
    "ConsumerOffsetSerializeWrapper": (
        loose_json.dumps(ConsumerOffsetFile(offset_table={"T@G": {0: 5, 1: 6}})),
        {"OffsetTable": [["String", "T@G", [["Integer", 0, 5], ["Integer", 1, 6]]]]},
    ),
    "ClusterInfo": (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c"}},"clusterAddrTable":{"c":["b"]}}',
        {"BrokerAddrTable": [["String", "b", {"BrokerAddrs": [["Long", 0, "a:1"]]}]]},
    ),
}


@pytest.fixture(params=JAVA_CLIENT_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def bodies(version: str, mode: str, given: bytes = b"") -> list[dict[str, Any]]:
    """The lines printed by the Java program."""
    try:
        client = java_client(version)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
    command = [
        tool("java"),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        client.classpath,
        "rmqkit.interop.Bodies",
        mode,
    ]
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"body"')]


def without_unset_numbers(found: Any) -> Any:
    """Java's object without the numbers that the body did not contain, which are 0."""
    if isinstance(found, dict):
        return {name: value for name, value in found.items() if value != 0}
    return (
        [without_unset_numbers(item) for item in found]
        if isinstance(found, list) and isinstance(found[-1], (list, dict))
        else found
    )


def test_java_reads_what_we_write(version: str) -> None:
    """Queues are decoded as queues and numbers as numbers, in every version."""
    lines = bodies(
        version, "read", b"".join(b"%s\t%s\n" % (name.encode(), text) for name, (text, _) in WRITTEN.items())
    )
    assert [line.pop("body") for line in lines] == list(WRITTEN)
    for line, (name, (_, expected)) in zip(lines, WRITTEN.items(), strict=True):
        assert line.pop("error") is None, name
        assert {
            table: without_unset_numbers(rows) if rows else rows for table, rows in line.items()
        } == expected


def test_an_object_key_as_text(version: str) -> None:
    """fastjson2 refuses a key that is the text of an object, which is why object keys are bare; the test
    fails if that changes."""
    text = loose_json.dumps({"offsetTable": {loose_json.dumps(FIRST).decode(): 11}})
    (line,) = bodies(version, "read", b"ResetOffsetBody\t%s\n" % text)
    assert (line["error"] is None) is (version != "5.5.0")


def test_the_recorded_bodies_are_what_java_writes(version: str) -> None:
    """The bodies recorded for the unit tests are the texts of these classes."""
    found = {line["body"]: str(line["text"]).encode() for line in bodies(version, "write")}
    assert found == vectors.java_bodies(version)
