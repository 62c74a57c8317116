"""Typed headers: every class is encoded and decoded, and its names and types are those of the sheet."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.errors import HeaderError
from rmqkit.protocol import headers
from rmqkit.protocol.codes import LANGUAGES, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, header_fields, request
from rmqkit.protocol.frame import FrameDecoder, encode
from rmqkit.protocol.integers import I32, I64
from rmqkit.protocol.value_frames import decode_header

WIRE_SHEET = Path(__file__).parents[2] / "docs" / "spec" / "wire-protocol.md"
BODIES = {"ConsumerListBody", "LockBatchMqBody", "LockBatchMqResponseBody"}
CLASSES: list[type[msgspec.Struct]] = [
    getattr(headers, name) for name in headers.__all__ if name not in BODIES
]
TYPE_NAMES: dict[Any, str] = {str: "s", bool: "bool", I32: "i32", I64: "i64"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    # The binary form has no empty text.
    "s": st.text(min_size=1, max_size=20),
    "bool": st.booleans(),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
}

#: Code or name of an answer -> the class and its fields as in section 3, `!` not null, `?` nullable, without
#: the RPC base fields (RQH).
V1 = (
    "producerGroup s!, topic s!, defaultTopic s!, defaultTopicQueueNums i32!, queueId i32!, sysFlag i32!,"
    " bornTimestamp i64!, flag i32!, properties s?, reconsumeTimes i32?, unitMode bool?"
)
V2 = "a s!, b s!, c s!, d i32!, e i32!, f i32!, g i64!, h i32!, i s?, j i32?, k bool?, l i32?, m bool?, n s?"
PULL = (
    "consumerGroup s!, topic s!, queueId i32!, queueOffset i64!, maxMsgNums i32!, sysFlag i32!, commitOffset"
    " i64!, suspendTimeoutMillis i64!, subscription s?, subVersion i64!, expressionType s?, maxMsgBytes i32?,"
    " requestSource i32?, proxyFrowardClientId s?, sequentialBytes i32?, bname s?"
)
POP = (
    "consumerGroup s!, topic s!, queueId i32!, maxMsgNums i32!, invisibleTime i64!, pollTime i64!, bornTime"
    " i64!, initMode i32!, expType s?, exp s?, order bool?, attemptId s?, orderBy s?, bname s?"
)
ACK = "consumerGroup s!, topic s!, queueId i32!, extraInfo s!, offset i64!, liteTopic s?, bname s?"
QUEUE = "topic s!, queueId i32!, bname s?"
END = (
    "topic s?, producerGroup s!, tranStateTableOffset i64!, commitLogOffset i64!, commitOrRollback i32!,"
    " fromTransactionCheck bool?, msgId s!, transactionId s?, bname s?"
)
CHECK = (
    "topic s?, tranStateTableOffset i64!, commitLogOffset i64!, msgId s?, transactionId s?, offsetMsgId s?,"
    " bname s?"
)
BACK = (
    "offset i64!, group s!, delayLevel i32!, originMsgId s?, originTopic s?, unitMode bool?,"
    " maxReconsumeTimes i32?, cause s?, lastError s?, bname s?"
)
SHEET: dict[str, tuple[type[msgspec.Struct], str]] = {
    "10": (headers.SendMessageRequestHeader, V1 + ", maxReconsumeTimes i32?, batch bool?, bname s?"),
    "310": (headers.SendMessageRequestHeaderV2, V2),
    "send answer": (
        headers.SendMessageResponseHeader,
        (
            "msgId s!, queueId i32!, queueOffset i64!, transactionId s?, batchUniqId s?, recallHandle s?,"
            " MSG_REGION s?, TRACE_ON bool?"
        ),
    ),
    "326": (headers.PushReplyMessageRequestHeader, V1 + ", bornHost s!, storeHost s!, storeTimestamp i64!"),
    "11": (headers.PullMessageRequestHeader, PULL),
    "pull answer": (
        headers.PullMessageResponseHeader,
        (
            "suggestWhichBrokerId i64!, nextBeginOffset i64!, minOffset i64!, maxOffset i64!, offsetDelta"
            " i64?, topicSysFlag i32?, groupSysFlag i32?, forbiddenType i32?"
        ),
    ),
    "200050": (headers.PopMessageRequestHeader, POP),
    "200050 answer": (
        headers.PopMessageResponseHeader,
        "popTime i64!, invisibleTime i64!, reviveQid i32!, restNum i64!, startOffsetInfo s?,"
        " msgOffsetInfo s?, orderCountInfo s?",
    ),
    "200051": (headers.AckMessageRequestHeader, ACK),
    "200070": (
        headers.PopLiteMessageRequestHeader,
        "clientId s!, consumerGroup s!, topic s!, maxMsgNum i32!, invisibleTime i64!, pollTime i64!, bornTime"
        " i64!, attemptId s?, bname s?",
    ),
    "answer to 200070": (
        headers.PopLiteMessageResponseHeader,
        "popTime i64!, invisibleTime i64!, reviveQid i32!, startOffsetInfo s?, msgOffsetInfo s?,"
        " orderCountInfo s?",
    ),
    "200071": (headers.LiteSubscriptionCtlRequestHeader, "bname s?"),
    "200073": (headers.NotifyUnsubscribeLiteRequestHeader, "liteTopic s!, consumerGroup s!, clientId s!"),
    "200075": (headers.GetParentTopicInfoRequestHeader, "topic s!"),
    "200076": (headers.GetLiteTopicInfoRequestHeader, "parentTopic s!, liteTopic s!"),
    "200077": (
        headers.GetLiteClientInfoRequestHeader,
        "parentTopic s?, group s!, clientId s!, maxCount i32!",
    ),
    "200078": (headers.GetLiteGroupInfoRequestHeader, "group s!, liteTopic s?, topK i32!"),
    "200079": (headers.TriggerLiteDispatchRequestHeader, "group s!, clientId s?"),
    "200053": (headers.ChangeInvisibleTimeRequestHeader, ACK + ", invisibleTime i64!, suspend bool?"),
    "200053 answer": (
        headers.ChangeInvisibleTimeResponseHeader,
        "popTime i64!, invisibleTime i64!, reviveQid i32!",
    ),
    "200054": (
        headers.NotificationRequestHeader,
        "consumerGroup s!, topic s!, queueId i32!, pollTime i64!, bornTime i64!, order bool?, attemptId s?,"
        " orderBy s?",
    ),
    "200054 answer": (headers.NotificationResponseHeader, "hasMsg bool!, pollingFull bool!"),
    "200055": (headers.PollingInfoRequestHeader, "consumerGroup s!, topic s!, queueId i32!"),
    "200055 answer": (headers.PollingInfoResponseHeader, "pollingNum i32!"),
    "35": (headers.UnregisterClientRequestHeader, "clientID s!, producerGroup s?, consumerGroup s?"),
    "301": (headers.RegisterFilterServerRequestHeader, "filterServerAddr s!"),
    "301 answer": (headers.RegisterFilterServerResponseHeader, "brokerName s!, brokerId i64!"),
    "302": (
        headers.RegisterMessageFilterClassRequestHeader,
        "consumerGroup s!, topic s!, className s!, classCRC i32!",
    ),
    "38": (headers.ConsumerGroupRequestHeader, "consumerGroup s!"),
    "14": (
        headers.QueryConsumerOffsetRequestHeader,
        "consumerGroup s!, topic s!, queueId i32!, setZeroIfNotFound bool?, bname s?",
    ),
    "15": (
        headers.UpdateConsumerOffsetRequestHeader,
        "consumerGroup s!, topic s!, queueId i32!, commitOffset i64!, bname s?",
    ),
    "29": (headers.SearchOffsetRequestHeader, QUEUE + ", timestamp i64!, boundaryType s?"),
    "30": (headers.QueueRequestHeader, QUEUE + ", committed bool?"),
    "offset answer": (headers.OffsetResponseHeader, "offset i64!"),
    "32 answer": (headers.TimestampResponseHeader, "timestamp i64!"),
    "36": (headers.ConsumerSendMsgBackRequestHeader, BACK),
    "12": (
        headers.QueryMessageRequestHeader,
        "topic s!, key s!, maxNum i32!, beginTimestamp i64!, endTimestamp i64!, _UNIQUE_KEY_QUERY bool?,"
        " indexType s?",
    ),
    "12 answer": (
        headers.QueryMessageResponseHeader,
        "indexLastUpdateTimestamp i64!, indexLastUpdatePhyoffset i64!",
    ),
    "33": (headers.ViewMessageRequestHeader, "topic s?, offset i64!"),
    "37": (headers.EndTransactionRequestHeader, END),
    "39": (headers.CheckTransactionStateRequestHeader, CHECK),
    "323": (headers.ResumeCheckHalfMessageRequestHeader, "topic s?, msgId s!"),
    "370": (headers.RecallMessageRequestHeader, "producerGroup s?, topic s!, recallHandle s!, bname s?"),
    "370 answer": (headers.RecallMessageResponseHeader, "msgId s!, MSG_REGION s?"),
    "105": (headers.GetRouteInfoRequestHeader, "topic s!, acceptStandardJsonOnly bool?"),
    "17": (
        headers.CreateTopicRequestHeader,
        (
            "topic s!, defaultTopic s!, readQueueNums i32!, writeQueueNums i32!, perm i32!, topicFilterType"
            " s!, topicSysFlag i32?, order bool!, attributes s?, force bool?"
        ),
    ),
    "215": (headers.DeleteTopicRequestHeader, "topic s!"),
    "351": (headers.GetTopicConfigRequestHeader, "topic s!"),
    "202": (headers.GetTopicStatsInfoRequestHeader, "topic s!"),
    "207": (headers.DeleteSubscriptionGroupRequestHeader, "groupName s!, cleanOffset bool?"),
    "345": (headers.GroupRequestHeader, "group s!, topic s?"),
    "208": (headers.GetConsumeStatsRequestHeader, "consumerGroup s!, topic s?, topicList s?"),
    "204": (headers.ProducerGroupRequestHeader, "producerGroup s!"),
    "222": (
        headers.ResetOffsetRequestHeader,
        "topic s!, group s!, timestamp i64!, isForce bool!, queueId i32?, offset i64?",
    ),
    "317": (headers.GetConsumeStatsInBrokerHeader, "isOrder bool!"),
    "223": (headers.GetConsumerStatusRequestHeader, "topic s!, group s!, clientAddr s?"),
    "309": (headers.ConsumerClientRequestHeader, "consumerGroup s!, clientId s?, msgId s?, topic s?"),
    "303": (headers.QueryConsumeTimeSpanRequestHeader, "topic s!, group s!"),
    "308": (headers.QueryCorrectionOffsetHeader, "topic s!, compareGroup s!, filterGroups s?"),
    "314": (headers.CloneGroupOffsetRequestHeader, "srcGroup s!, destGroup s!, topic s?, offline bool!"),
    "321": (
        headers.QueryConsumeQueueRequestHeader,
        "topic s!, queueId i32!, index i64!, count i32!, consumerGroup s?",
    ),
    "315": (headers.ViewBrokerStatsDataRequestHeader, "statsName s!, statsKey s!"),
    "103": (
        headers.RegisterBrokerRequestHeader,
        (
            "brokerName s!, brokerAddr s!, clusterName s!, haServerAddr s!, brokerId i64!,"
            " heartbeatTimeoutMillis i64?, enableActingMaster bool?, compressed bool!, bodyCrc32 i32!,"
            " __ZONE_NAME s?"
        ),
    ),
    "104": (
        headers.UnregisterBrokerRequestHeader,
        "brokerName s!, brokerAddr s!, clusterName s!, brokerId i64!",
    ),
    "904": (
        headers.BrokerHeartbeatRequestHeader,
        (
            "clusterName s!, brokerAddr s!, brokerName s!, brokerId i64?, epoch i32?, maxOffset i64?,"
            " confirmOffset i64?, heartbeatTimeoutMills i64?, electionPriority i32?"
        ),
    ),
    "322": (
        headers.QueryDataVersionRequestHeader,
        "brokerName s!, brokerAddr s!, clusterName s!, brokerId i64!",
    ),
    "217": (headers.RegisterTopicRequestHeader, "topic s!"),
    "216": (headers.DeleteTopicFromNamesrvRequestHeader, "topic s!, clusterName s?"),
    "224": (headers.ClusterRequestHeader, "cluster s!"),
    "205": (headers.WritePermRequestHeader, "brokerName s!"),
    "100": (headers.PutKvConfigRequestHeader, "namespace s!, key s!, value s!"),
    "101": (headers.KvConfigRequestHeader, "namespace s!, key s!"),
    "219": (headers.KvNamespaceRequestHeader, "namespace s!"),
    "901": (headers.GetBrokerMemberGroupRequestHeader, "clusterName s!, brokerName s!"),
}
#: Nullable fields of the sheet for unsupported features; they are ignored.
LEFT_OUT = {"offsetDelta", "epoch", "maxOffset", "confirmOffset", "electionPriority"}


def kind_of(annotation: Any) -> tuple[str, bool]:
    """The sheet's name of a field type, and whether None is allowed."""
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = (member for member in get_args(annotation) if member is not type(None))
        return TYPE_NAMES[inner], True
    return TYPE_NAMES[annotation], False


def fields_of(kind: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, str, bool]]:
    return [(field, *kind_of(field.type)) for field in msgspec.structs.fields(kind)]


def optional(field: msgspec.structs.FieldInfo) -> bool:
    return not field.required


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Headers of a class with any values; None only where an absent field is decoded as None."""
    return st.builds(
        kind,
        **{
            field.name: (st.none() | VALUES[name]) if nullable and field.default is None else VALUES[name]
            for field, name, nullable in fields_of(kind)
        },
    )


def smallest(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The required fields of a header, as text, under their names on the wire."""
    text = {"s": "x", "bool": "true", "i32": "1", "i64": "1"}
    return {field.encode_name: text[name] for field, name, _ in fields_of(kind) if field.required}


def framed(fields: dict[str, Any], codec: int) -> Command:
    (command,) = FrameDecoder().feed(encode(Command(code=10, ext=fields, codec=codec)))
    return command


def spelled(**members: Any) -> Command:
    """A request whose header fields are JSON of any kind."""
    return decode_header(msgspec.json.encode({"code": 10, "extFields": members}), 0)


@pytest.mark.row("S322")
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_round_trip(kind: type[msgspec.Struct]) -> None:
    """A header encoded to fields and a frame is decoded unchanged, in both serialisations."""

    @settings(max_examples=25, deadline=None, database=None)
    @given(instances(kind))
    def check(header: msgspec.Struct) -> None:
        command = request(10, header, opaque=1)
        for codec in (0, 1):
            command.codec = codec
            (read,) = FrameDecoder().feed(encode(command))
            assert read.header(kind) == header
            assert read.fields() == header_fields(header)
            assert read.header(kind) == header

    check()


def test_every_class_stands_in_the_sheet() -> None:
    """Every header class is checked against the sheet."""
    assert {kind for kind, _ in SHEET.values()} == set(CLASSES)


@pytest.mark.row("S322")
@pytest.mark.parametrize("entry", SHEET)
def test_names_and_types_of_the_sheet(entry: str) -> None:
    """Names, types and nullability are those of section 3: fields that Java may omit are not required, and no
    field has another name."""
    kind, listed = SHEET[entry]
    expected = {
        name: (spec[:-1], spec[-1] == "?") for name, spec in (item.split(" ") for item in listed.split(", "))
    }
    found = {field.encode_name: (name, nullable, field.required) for field, name, nullable in fields_of(kind)}
    assert set(found) <= set(expected)
    assert set(expected) - set(found) <= LEFT_OUT
    for wire, (name, nullable, required) in found.items():
        assert name == expected[wire][0], wire
        if expected[wire][1]:
            assert nullable, wire
            assert not required, wire


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("codec", [0, 1])
def test_missing_fields_are_named(kind: type[msgspec.Struct], codec: int) -> None:
    """A header without a required field is refused with the field's name; with all of them it is decoded."""
    fields = smallest(kind)
    framed(fields, codec).header(kind)
    if kind is headers.LiteSubscriptionCtlRequestHeader:
        # It is empty; the body says everything.
        assert not fields
        return
    assert fields
    for name in fields:
        with pytest.raises(HeaderError, match=f"`{name}`"):
            framed({key: value for key, value in fields.items() if key != name}, codec).header(kind)
        with pytest.raises(HeaderError, match=f"`{name}`"):
            spelled(**fields | {name: None}).header(kind)
    with pytest.raises(HeaderError):
        Command(code=10).header(kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_scalars_in_text_places(kind: type[msgspec.Struct]) -> None:
    """Numbers and booleans in text fields, as clients in other languages send them, become text; null is an
    absent field."""
    for field, name, nullable in fields_of(kind):
        fields: dict[str, Any] = dict(smallest(kind))
        if name == "s":
            for value, read in ((5, "5"), (-1.5, "-1.5"), (True, "true"), (False, "false")):
                assert (
                    getattr(spelled(**fields | {field.encode_name: value}).header(kind), field.name) == read
                )
        elif name == "bool":
            for sent, truth in (
                (True, True),
                ("true", True),
                ("TRUE", True),
                (False, False),
                ("False", False),
            ):
                assert (
                    getattr(spelled(**fields | {field.encode_name: sent}).header(kind), field.name) is truth
                )
        else:
            for digits, number in ((7, 7), ("-7", -7), (0, 0), ("0", 0)):
                assert (
                    getattr(spelled(**fields | {field.encode_name: digits}).header(kind), field.name)
                    == number
                )
        if nullable:
            assert getattr(spelled(**fields | {field.encode_name: None}).header(kind), field.name) in (
                None,
                field.default,
            )


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("codec", [0, 1])
def test_wrong_types_are_named(kind: type[msgspec.Struct], codec: int) -> None:
    """Words for numbers, numbers beyond Java's integers, lists and objects are refused with the field's
    name."""
    for field, name, _ in fields_of(kind):
        fields = smallest(kind)
        bad: list[str] = {
            "s": [],
            "bool": ["maybe", "2"],
            "i32": ["x", "1.5", "0x10", str(2**31), str(-(2**31) - 1), str(10**30)],
            "i64": ["x", "1.5", str(2**63), str(-(2**63) - 1), str(10**30)],
        }[name]
        for value in bad:
            with pytest.raises(HeaderError, match=field.encode_name):
                framed(fields | {field.encode_name: value}, codec).header(kind)
        for shape in ([], [1], {}, {"a": 1}):
            with pytest.raises(HeaderError, match=field.encode_name):
                spelled(**fields | {field.encode_name: shape}).header(kind)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_unknown_fields_are_ignored(kind: type[msgspec.Struct]) -> None:
    """Fields of other versions and of hooks are ignored."""
    extra = {"lo": "true", "oway": "false", "nsd": "x", "ReqT": "0", "Signature": "s", "zz": "1"}
    assert framed(smallest(kind) | extra, 0).header(kind) == framed(smallest(kind), 0).header(kind)


@pytest.mark.row("S097")
@pytest.mark.parametrize("codec", [0, 1])
def test_send_headers_agree(codec: int) -> None:
    """The long names of SEND_MESSAGE and the letters of SEND_MESSAGE_V2 (also used by batches) represent the
    same values."""
    values: dict[str, Any] = {
        "producer_group": "PG",
        "topic": "T",
        "default_topic": "D",
        "default_topic_queue_nums": 3,
        "queue_id": -1,
        "sys_flag": 1,
        "born_timestamp": 1700000000000,
        "flag": 9,
        "properties": "TAGS\x01TagA\x02",
        "reconsume_times": 2,
        "unit_mode": True,
        "max_reconsume_times": 16,
        "batch": True,
        "bname": "b-a",
    }
    long, short = headers.SendMessageRequestHeader(**values), headers.SendMessageRequestHeaderV2(**values)
    letters = header_fields(short)
    assert letters == {
        "a": "PG", "b": "T", "c": "D", "d": "3", "e": "-1", "f": "1", "g": "1700000000000", "h": "9",
        "i": "TAGS\x01TagA\x02", "j": "2", "k": "true", "l": "16", "m": "true", "n": "b-a",
    }  # fmt: skip
    read_long = framed(header_fields(long), codec).header(headers.SendMessageRequestHeader)
    read_short = framed(letters, codec).header(headers.SendMessageRequestHeaderV2)
    assert msgspec.structs.asdict(read_long) == msgspec.structs.asdict(read_short) == values


def test_text_null_stays_text() -> None:
    """The text "null" in a text field is a text, which Java clients write there."""
    read = framed({"msgId": "null", "queueId": "0", "queueOffset": "1", "transactionId": "null"}, 0).header(
        headers.SendMessageResponseHeader
    )
    assert (read.msg_id, read.transaction_id) == ("null", "null")


P0_REQUESTS = {
    10: "SEND_MESSAGE", 11: "PULL_MESSAGE", 12: "QUERY_MESSAGE", 14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET", 29: "SEARCH_OFFSET_BY_TIMESTAMP", 30: "GET_MAX_OFFSET",
    31: "GET_MIN_OFFSET", 32: "GET_EARLIEST_MSG_STORETIME", 33: "VIEW_MESSAGE_BY_ID", 34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT", 36: "CONSUMER_SEND_MSG_BACK", 37: "END_TRANSACTION",
    38: "GET_CONSUMER_LIST_BY_GROUP", 39: "CHECK_TRANSACTION_STATE", 40: "NOTIFY_CONSUMER_IDS_CHANGED",
    41: "LOCK_BATCH_MQ", 42: "UNLOCK_BATCH_MQ", 46: "CHECK_CLIENT_CONFIG", 105: "GET_ROUTEINFO_BY_TOPIC",
    310: "SEND_MESSAGE_V2", 320: "SEND_BATCH_MESSAGE", 324: "SEND_REPLY_MESSAGE",
    325: "SEND_REPLY_MESSAGE_V2", 326: "PUSH_REPLY_MESSAGE_TO_CLIENT", 361: "LITE_PULL_MESSAGE",
    400: "QUERY_ASSIGNMENT", 200050: "POP_MESSAGE", 200051: "ACK_MESSAGE",
    200053: "CHANGE_MESSAGE_INVISIBLETIME", 200151: "BATCH_ACK_MESSAGE",
}  # fmt: skip


def test_every_answer_of_the_sheet_has_its_name() -> None:
    """Numbers below 0 never travel. Where two names share a number, in other versions, one of them is taken.
    Newer versions have further answers."""
    section = WIRE_SHEET.read_text().split("### 2.2 Response codes")[1].split("\n## ")[0]
    named: dict[int, set[str]] = {}
    for code, name in re.findall(r"\| (\d+) \| ([A-Z_]+) \|", section):
        named.setdefault(int(code), set()).add(name)
    assert len(named) > 60
    assert {code: names for code, names in named.items() if ResponseCode(code).name not in names} == {}


def test_code_tables() -> None:
    """Numbers and names of all P0 requests and languages are those of the sheet."""
    assert {code: RequestCode(code).name for code in P0_REQUESTS} == P0_REQUESTS
    assert (
        ",".join(LANGUAGES) == "JAVA,CPP,DOTNET,PYTHON,DELPHI,ERLANG,RUBY,OTHER,HTTP,GO,PHP,OMS,RUST,NODE_JS"
    )
