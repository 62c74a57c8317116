"""Lite topics by remoting, as proxies ask for them: the same requests at Apache's broker and here have the
same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rmqkit.client import BlockingClient
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.record import unpack
from tests.interop import peers
from tests.interop.builds import BuildError

Code = RequestCode
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "maxLmqConsumeQueueNum": 1_000}
SENT = {
    "producerGroup": "p",
    "topic": "P",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "reconsumeTimes": "0",
    "unitMode": "false",
}
CLIENT = {"parentTopic": "P", "group": "G", "clientId": "c1", "maxCount": "10"}


@pytest.fixture(scope="module", params=["rmqkit", "apache"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[peers.Server]:
    home = tmp_path_factory.mktemp(request.param)
    try:
        if request.param == "apache":
            with peers.apache_cluster(home, settings=SETTINGS) as server:
                yield server
        else:
            with peers.rmqkit_serve(home, arguments=["--set", "maxLmqConsumeQueueNum=1000"]) as server:
                yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


def subscribe(server: peers.Server, action: str, *lite_topics: str) -> None:
    change = {"action": action, "clientId": "c1", "group": "G", "topic": "P", "version": 0}
    body = {"subscriptionSet": [change | {"liteTopicSet": lite_topics}]}
    assert peers.call(server.broker, Code.LITE_SUBSCRIPTION_CTL, {}, json.dumps(body).encode()).code == 0


def pop(server: peers.Server, poll_ms: int = 10_000) -> peers.Answer:
    fields = {"clientId": "c1", "consumerGroup": "G", "topic": "P", "maxMsgNum": "8", "bornTime": "0"}
    fields |= {"invisibleTime": "30000", "pollTime": str(poll_ms)}
    return peers.call(server.broker, Code.POP_LITE_MESSAGE, fields)


def told(server: peers.Server, code: RequestCode, **fields: str) -> Any:
    """The body of an answer, without times."""
    answer = peers.call(server.broker, code, fields)
    assert answer.code == 0, answer
    return _timeless(json.loads(answer.body))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.lower().endswith(("timestamp", "time"))}
        return {key: _timeless(each) for key, each in kept.items()}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def test_a_lite_topic_is_popped_and_shown(server: peers.Server) -> None:
    """Sent, subscribed, popped, acknowledged; the next message follows; what mqadmin asks for has the same
    bodies, but for figures of tables that only one of the brokers has."""
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic("P", queues=1, message_type="LITE")
        bound = SubscriptionGroupConfig(group_name="G", attributes={"+lite.bind.topic": "P"})
        client.groups.put("G", bound)
    for body in (b"first", b"second"):
        properties = {"__LITE_TOPIC": "one", "UNIQ_KEY": body.decode(), "WAIT": "true"}
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        assert peers.call(server.broker, Code.SEND_MESSAGE, SENT | {"properties": text}, body).code == 0
    subscribe(server, "PARTIAL_ADD", "one")
    popped = pop(server)
    assert popped.code == 0, popped
    assert popped.fields["reviveQid"] == "999"
    assert popped.fields["orderCountInfo"] == "0;0"
    first = unpack(popped.body[: int.from_bytes(popped.body[:4], "big")])
    assert (first.topic, first.body, first.properties["__LITE_TOPIC"]) == ("P", b"first", "one")
    assert pop(server, 100).code == ResponseCode.POLLING_TIMEOUT
    lag = {"liteTopic": "one", "lagCount": 2}
    lags = told(server, Code.GET_LITE_GROUP_INFO, group="G", topK="10")
    # Apache's broker collects them after a setting.
    assert lags.pop("lagTimestampTopK") in ([], [lag])
    assert lags == {"group": "G", "parentTopic": "P", "totalLagCount": 2, "lagCountTopK": [lag]}
    assert told(server, Code.GET_LITE_GROUP_INFO, group="G", liteTopic="one", topK="10") == {
        "group": "G",
        "parentTopic": "P",
        "liteTopic": "one",
        "totalLagCount": 2,
        "liteTopicOffsetWrapper": {"brokerOffset": 2, "consumerOffset": 0, "pullOffset": 0},
    }
    assert told(server, Code.GET_LITE_TOPIC_INFO, parentTopic="P", liteTopic="one") == {
        "parentTopic": "P",
        "liteTopic": "one",
        "shardingToBroker": True,
        "subscriber": [{"clientId": "c1", "group": "G"}],
        "topicOffset": {"minOffset": 0, "maxOffset": 2},
    }
    assert told(server, Code.GET_PARENT_TOPIC_INFO, topic="P") == {
        "topic": "P",
        "ttl": -1,
        "groups": ["G"],
        "lmqNum": 1,
        "liteTopicCount": 1,
    }
    assert told(server, Code.GET_LITE_CLIENT_INFO, **CLIENT) == {
        "parentTopic": "P",
        "group": "G",
        "clientId": "c1",
        "liteTopicCount": 1,
        "liteTopicSet": ["%LMQ%$P$one"],
    }
    info = told(server, Code.GET_BROKER_LITE_INFO)
    tables = {"cqTableSize", "offsetTableSize", "orderInfoCount", "eventMapSize"}
    assert {key: value for key, value in info.items() if key not in tables} == {
        "storeType": "default",
        "maxLmqNum": 1_000,
        "currentLmqNum": 1,
        "liteSubscriptionCount": 1,
        "topicMeta": {"P": -1},
        "groupMeta": {"P": ["G"]},
    }
    assert tables <= info.keys()
    settings = peers.call(server.broker, Code.GET_BROKER_CONFIG, {}).body.decode().splitlines()
    (name,) = [line.partition("=")[2] for line in settings if line.startswith("brokerName=")]
    for offset in (0, 1):
        times = f"{popped.fields['popTime']} {popped.fields['invisibleTime']}"
        ack = {
            "consumerGroup": "G",
            "topic": "P",
            "queueId": "0",
            "liteTopic": "one",
            "offset": str(offset),
            "extraInfo": f"0 {times} 999 0 {name} 0 {offset}",
        }
        assert peers.call(server.broker, Code.ACK_MESSAGE, ack).code == 0
    assert peers.call(server.broker, Code.TRIGGER_LITE_DISPATCH, {"group": "G", "clientId": "c1"}).code == 0
    subscribe(server, "COMPLETE_REMOVE")
    assert told(server, Code.GET_BROKER_LITE_INFO)["liteSubscriptionCount"] == 0
