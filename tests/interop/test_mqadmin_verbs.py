"""The verbs of Apache's mqadmin, called with the same words before Apache's server and before rmqkit's, print
the same, but for numbers, times and ids. What differs is named with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import frozen

from rmqkit.client import BlockingClient, Message
from rmqkit.model.topic import SubscriptionGroupConfig
from tests.interop import class_archive, peers
from tests.interop.builds import SERVER_VERSION, BuildError, java_verbs, tool

NAME, CLUSTER = "apache-broker", "DefaultCluster"
#: In the order of the calls. {broker} is its address, {dir} a folder; {id} and {unique} are ids of a message.
SAME = tuple(
    """\
clusterList
clusterList -m
topicList
topicList -c
updateTopic -c {cluster} -t V -r 2 -w 2
updateTopic -b {broker} -t V2
updateTopicPerm -c {cluster} -t V2 -p 4
topicRoute -t V
topicRoute -l -t V
topicStatus -t V
topicClusterList -t V
updateSubGroup -c {cluster} -g G
getConsumerConfig -g G
consumerProgress
consumerProgress -g G
consumerConnection -g G
producerConnection -g p -t V
producer -b {broker}
sendMessage -t V -p hello -k key1 -c tagA -b {name} -i 0
queryMsgByKey -t V -k key1
queryMsgByOffset -t V -b {name} -i 0 -o 0
queryMsgById -i {id} -t V
queryMsgByUniqueKey -i {unique} -t V
queryMsgTraceById -i {unique}
printMsg -t V -d true
printMsgByQueue -t V -a {name} -i 0 -p true
brokerConsumeStats -b {broker}
statsAll
statsAll -a -t V
updateBrokerConfig -b {broker} -k fileReservedTime -v 48
updateNamesrvConfig -k orderMessageEnable -v true
updateKvConfig -s N -k k -v v
deleteKvConfig -s N -k k
updateOrderConf -t V -m put -v {name}:2
updateOrderConf -t V -m get
updateOrderConf -t V -m delete
wipeWritePerm -b {name}
addWritePerm -b {name}
resetOffsetByTime -g G -t V -s -1
skipAccumulatedMessage -g G -t V
cloneGroupOffset -s G -d G2 -t V -o true
setConsumeMode -c {cluster} -t V -g G -m PULL -q 0
queryCq -t V -q 0 -i 0 -b {broker}
cleanExpiredCQ -b {broker}
deleteExpiredCommitLog -b {broker}
cleanUnusedTopic -b {broker}
allocateMQ -t V -i 10.0.0.1,10.0.0.2
checkMsgSendRT -t V -a 2 -s 128
exportMetadata -c {cluster} -f {dir}
exportConfigs -c {cluster} -f {dir}
exportMetrics -c {cluster} -f {dir}
haStatus -b {broker}
getBrokerEpoch -b {broker}
consumerStatus -g G
updateTopicList -b {broker} -f {dir}/topics.json
updateSubGroupList -b {broker} -f {dir}/groups.json
resetMasterFlushOffset -b {broker} -o 0
updateColdDataFlowCtrGroupConfig -b {broker} -g G -v 1000
getColdDataFlowCtrInfo -b {broker}
removeColdDataFlowCtrGroupConfig -b {broker} -g G
deleteSubGroup -c {cluster} -g G
deleteTopic -c {cluster} -t V2
updateTopic -c NoCluster -t V
topicRoute -t NoTopic
topicStatus -t NoTopic
consumerProgress -g NoGroup
getConsumerConfig -g NoGroup
queryMsgByKey -t NoTopic -k k
""".splitlines()
)
#: Call -> (why it differs, what rmqkit's answer has).
DIFFERENT: Mapping[str, tuple[str, str]] = {
    "brokerStatus -b {broker}": ("there are more figures", "bootTimestamp"),
    "getBrokerConfig -b {broker}": ("the settings are those of the server", "fileReservedTime"),
    "getNamesrvConfig": ("the settings are those of the server", "scanNotActiveBrokerInterval"),
    "updateBrokerConfig -b {broker} -k noSuchKey -v 48": (
        "Apache's broker takes a setting that it does not have",
        "no settings of this server, nothing was changed: noSuchKey",
    ),
    "updateColdDataFlowCtrGroupConfig -b {broker} -g G -v much": (
        "Apache's broker says success, and sets nothing",
        "the threshold of cold reads of group G is a number of bytes, not 'much'",
    ),
    "setCommitLogReadAheadMode -b {broker} -m 0": (
        "the log is not read through mapped pages",
        "does not support read-ahead modes of the log",
    ),
    "switchTimerEngine -b {broker} -e F": ("there is one engine", "does not support timers in RocksDB"),
    "exportPopRecord -b {broker} -d true": ("there is no RocksDB", "does not support pop records in RocksDB"),
    "checkRocksdbCqWriteProgress -c {cluster} -t V": ("there is no RocksDB", "is not supported here"),
    "addBroker -c {broker} -b /no/such": (
        "the remark names the request",
        "(ADD_BROKER) is not supported here",
    ),
    "removeBroker -c {broker} -b {cluster}:{name}:0": (
        "the remark names the request",
        "(REMOVE_BROKER) is not supported here",
    ),
}
CALLS = [*SAME, *DIFFERENT]
#: What the tools of an earlier version are called with, after all others: enough to see that their requests
#: are understood. All of SAME print the same with them, too.
EARLIER_VERSION = "5.3.3"
EARLIER = (
    "clusterList -m",
    "topicList -c",
    "updateTopic -c {cluster} -t V3 -r 2 -w 2",
    "topicRoute -t V",
    "topicStatus -t V",
    "updateSubGroup -c {cluster} -g G3",
    "getConsumerConfig -g G3",
    "sendMessage -t V -p hello -k key3 -c tagA -b {name} -i 0",
    "queryMsgByKey -t V -k key3",
    "queryMsgById -i {id} -t V",
    "printMsg -t V -d true",
    "statsAll -a -t V",
    "producer -b {broker}",
    "haStatus -b {broker}",
    "getColdDataFlowCtrInfo -b {broker}",
    "exportMetadata -c {cluster} -f {dir}",
    "consumerProgress -g NoGroup",
)
#: Topics that one of the servers alone has.
_OWN_TOPICS = re.compile(r"rmq_sys_(SYNC_BROKER|SET_ASIDE)|RMQ_SYS_(ROCKSDB_)?TRANS", re.IGNORECASE)
_STACK = re.compile(r"\s+at |\s*\.\.\. \d+ more|For more information|See https?://")
#: What stands for what differs from run to run: the last ones first change what the first ones have left.
_FORMS = (
    (re.compile(r"127\.\d+\.\d+\.\d+(:\d+)?"), "ADDRESS"),
    (re.compile(r"(/[\w.-]+)+/"), "FOLDER/"),
    (re.compile(r"[0-9A-F]{20,}"), "ID"),
    (re.compile(r"\d{4}[-/]?\d\d[-/]?\d\d[ T#,]*\d\d:?\d\d:?\d\d[,:.]?\d*"), "TIME"),
    (re.compile(r"-?\d+(\.\d+)?"), "0"),
    (re.compile(r"[\s=_#-]+"), " "),
)


@frozen
class Printed:
    """What the calls have printed before one server."""

    by_call: Mapping[str, str]

    def lines(self, call: str) -> list[str]:
        """The different lines of a call, without what differs from run to run, sorted."""
        found = set()
        for line in self.by_call[call].splitlines():
            if _STACK.match(line) or _OWN_TOPICS.search(line):
                continue
            for pattern, form in _FORMS:
                line = pattern.sub(form, line)
            found.add(line.strip())
        return sorted(found - {""})


def _called(
    server: peers.Server, home: Path, tools: Sequence[tuple[str, Sequence[str]]]
) -> Sequence[Printed]:
    """What the calls of each class path have printed, one class path after the other."""
    with BlockingClient(server.namesrv) as client:
        client.admin.create_topic("V", queues=2)
        client.groups.put("G", SubscriptionGroupConfig(group_name="G"))
        with client.producer("p") as producer:
            queue = next(each for each in producer.queues("V") if each.queue_id == 0)
            sent = producer.send(Message("V", b"hello", keys=["k0"], tag="t"), queue=queue)
    (home / "topics.json").write_text('[{"topicName":"L1","readQueueNums":1,"writeQueueNums":1,"perm":6}]')
    (home / "groups.json").write_text('[{"groupName":"L1"}]')
    values = {"cluster": CLUSTER, "name": NAME, "broker": server.broker, "dir": str(home)}
    values |= {"id": sent.offset_message_id, "unique": sent.message_id}
    return [
        _run(home, classpath, {call: f"{call.format(**values)} -n {server.namesrv}" for call in calls})
        for classpath, calls in tools
    ]


def _run(home: Path, classpath: str, calls: Mapping[str, str]) -> Printed:
    lines = ["\t".join(words.split(" ")) for words in calls.values()]
    (home / "calls").write_text("\n".join(lines) + "\n")
    properties = (f"-Duser.home={home}", "-Drocketmq.client.logUseSlf4j=true")
    command = [tool("java"), *peers.JAVA_CLIENT, *properties, "-cp", classpath]
    command += ["rmqkit.interop.verbs.VerbsProgram", str(home / "calls")]
    done = class_archive.run(command, capture_output=True, text=True, timeout=900)
    parts = done.stdout.split("\f\n")[1:]
    assert len(parts) == len(calls), done.stdout[-2_000:] + done.stderr[-2_000:]
    return Printed(dict(zip(calls, parts, strict=True)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[tuple[Printed, Printed]]]:
    """What the verbs of each version print before Apache's server, and before rmqkit's: both servers at once,
    for many verbs wait."""
    homes = [tmp_path_factory.mktemp(name) for name in ("apache", "rmqkit")]
    arguments = ["--set", f"brokerName={NAME}", "--set", "brokerRole=ASYNC_MASTER"]
    try:
        tools = [(java_verbs(SERVER_VERSION), CALLS), (java_verbs(EARLIER_VERSION), EARLIER)]
        with (
            peers.apache_cluster(homes[0]) as apache,
            peers.rmqkit_serve(homes[1], arguments=arguments) as rmqkit,
            ThreadPoolExecutor() as threads,
        ):
            both = [
                threads.submit(_called, server, home, tools)
                for server, home in zip((apache, rmqkit), homes, strict=True)
            ]
            first, second = (each.result() for each in both)
            yield list(zip(first, second, strict=True))
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture
def printed(found: Sequence[tuple[Printed, Printed]]) -> tuple[Printed, Printed]:
    return found[0]


@pytest.mark.parametrize("call", EARLIER)
def test_a_verb_of_earlier_tools_prints_the_same(found: Sequence[tuple[Printed, Printed]], call: str) -> None:
    """As before Apache's server, which is of the newest version, too."""
    apache, rmqkit = found[1]
    assert rmqkit.lines(call) == apache.lines(call)


@pytest.mark.parametrize("call", SAME)
def test_a_verb_prints_the_same(printed: tuple[Printed, Printed], call: str) -> None:
    """As before Apache's server, failures included."""
    apache, rmqkit = printed
    assert rmqkit.lines(call) == apache.lines(call)


@pytest.mark.parametrize("call", DIFFERENT)
def test_a_verb_that_differs(printed: tuple[Printed, Printed], call: str) -> None:
    """The answer says why; the day on which both print the same, the call belongs to the others."""
    apache, rmqkit = printed
    _, said = DIFFERENT[call]
    assert said in rmqkit.by_call[call]
    assert rmqkit.lines(call) != apache.lines(call)
