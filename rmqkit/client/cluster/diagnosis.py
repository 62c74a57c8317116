"""What is wrong with a cluster: functions without I/O, from observations to findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from rmqkit.client.cluster.admin import QueueStats
from rmqkit.client.cluster.group_admin import GroupConnections, Progress
from rmqkit.errors import RequestTimeout, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import BROADCASTING, SubscriptionData
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.protocol.codes import version_text
from rmqkit.protocol.value_frames import NOT_ROCKETMQ

#: Difference of two clocks in ms that is reported. Brokers tell their run time in seconds.
MAX_SKEW_MS = 5_000
#: Above the first ratio brokers delete old messages early, above the second one they refuse messages (Java:
#: diskMaxUsedSpaceRatio, diskSpaceWarningLevelRatio).
_FULL_RATIO, _REFUSING_RATIO = 0.75, 0.9
#: The copies of a master with the role SYNC_MASTER whose settings do not say how many (inSyncReplicas).
SYNC_MASTER_COPIES = 2
#: Java groups the digits of numbers, and its numbers are negative after the clock was set back.
_RUN_TIME = re.compile(r"(-?[\d,]+) days, (-?\d+) hours, (-?\d+) minutes, (-?\d+) seconds")
_LOCAL_HOSTS = ("127.", "localhost", "[::1]", "0.0.0.0")


@frozen
class Finding:
    """One thing that is wrong.

    check    its kind, the same in every version
    subject  the broker, group or topic
    text     what was seen
    advice   what to do
    """

    check: str
    subject: str
    text: str
    advice: str


def unreachable_name_server(address: str, error: RmqError) -> Finding:
    """A name server that does not answer, or something else at its address."""
    advice = "start it, or correct --namesrv; the usual port is 9876"
    if NOT_ROCKETMQ in str(error):
        advice = "something else answers there: correct --namesrv; the usual port is 9876"
    elif isinstance(error, RequestTimeout):
        advice = (
            "something takes connections there and says nothing, as servers of other protocols do: correct"
            " --namesrv; the usual port is 9876"
        )
    return Finding("unreachable-name-server", address, str(error), advice)


def unreachable(name: str, address: str, namesrv: Sequence[str], why: str) -> Finding:
    """A broker whose advertised address cannot be reached."""
    advice = (
        "start the broker, or open the port; when it runs, set bindAddress so that it listens there, or"
        " brokerIP1 to where it does; a broker that has ended disappears within two minutes"
    )
    if NOT_ROCKETMQ in why:
        advice = (
            "something else answers there: stop it, or set brokerIP1, bindAddress and listenPort of the"
            " broker to where it listens; a broker that has ended disappears within two minutes"
        )
    if address.startswith(_LOCAL_HOSTS) and not all(each.startswith(_LOCAL_HOSTS) for each in namesrv):
        advice = (
            "the address is valid on the broker's machine only: set brokerIP1 to one that clients can reach"
        )
    return Finding("unreachable-broker", name, f"it advertises {address}: {why}", advice)


def of_runtime(name: str, table: Mapping[str, str], asked_ms: int, answered_ms: int) -> Iterator[Finding]:
    """What a broker's run-time figures show, which were asked for and answered at these times of this
    machine."""
    log, queues = (_number(table.get(f"{part}DiskRatio")) for part in ("commitLog", "consumeQueue"))
    ratio = max(log, queues)
    if ratio > _FULL_RATIO:
        state = "it refuses messages" if ratio > _REFUSING_RATIO else "it deletes old messages early"
        whose = "its" if log == queues else "its log's" if log > queues else "its queues'"
        yield Finding(
            "full-disk",
            name,
            f"{whose} disk is {ratio:.0%} full: {state}",
            "add disk space, or lower fileReservedTime",
        )
    if table.get("disabledFilters"):
        yield Finding(
            "disabled-filter",
            name,
            f"it has disabled filters that failed: {table['disabledFilters']}",
            "mend the filter, and start the broker again; its consumers get nothing until then",
        )
    skew_ms = skew(table, asked_ms, answered_ms)
    if skew_ms is not None and abs(skew_ms) > MAX_SKEW_MS:
        ahead = "ahead of" if skew_ms > 0 else "behind"
        yield Finding(
            "clock-skew",
            name,
            f"its clock is {abs(skew_ms) / 1000:.0f} s {ahead} this machine's",
            "synchronize both with NTP: delays, times of messages and resets to a time depend on it",
        )


def skew(table: Mapping[str, str], asked_ms: int, answered_ms: int) -> int | None:
    """How far a broker's clock is at least ahead in ms (negative: behind); None when it does not tell.
    Brokers of Java tell their start and, from it, their run time."""
    then_ms = _present_ms(table)
    return None if then_ms is None else then_ms - min(max(then_ms, asked_ms), answered_ms)


def _present_ms(table: Mapping[str, str]) -> int | None:
    now = table.get("currentTimestamp", "")
    if now.isdecimal():
        return int(now)
    ran = _RUN_TIME.search(table.get("runtime", ""))
    boot = table.get("bootTimestamp", "")
    if ran is None or not boot.isdecimal():
        return None
    days, hours, minutes, seconds = (int(number.replace(",", "")) for number in ran.groups())
    return int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def of_settings(name: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """What a broker's settings show."""
    permission = settings.get("brokerPermission", "")
    if permission.isdecimal() and not int(permission) & PERM_WRITE:
        yield Finding(
            "read-only-broker",
            name,
            f"brokerPermission is {permission}: clients send it nothing",
            "set brokerPermission to 6 when the broker may be written again",
        )


def copies_wanted(settings: Mapping[str, str]) -> int:
    """How many copies of a message a master's settings speak of, its own included: all that there are, if
    they say so, else those that an answer waits for."""
    said = {
        key: int(settings[key])
        for key in ("totalReplicas", "inSyncReplicas", "minInSyncReplicas")
        if settings.get(key, "").isdecimal()
    }
    if settings.get("brokerRole") == "SYNC_MASTER":
        said.setdefault("inSyncReplicas", SYNC_MASTER_COPIES)
    else:
        said.pop("inSyncReplicas", None)
    return max(said.values(), default=1)


def missing_replicas(name: str, wanted: int, in_sync: int) -> Iterator[Finding]:
    """A master of which fewer copies are in sync than its settings speak of."""
    if in_sync < wanted:
        yield Finding(
            "missing-replica",
            name,
            f"{in_sync} of {wanted} copies are in sync, its own included",
            "start the broker that is missing; rmqkit broker ha shows how far each is behind",
        )


def records_aside(name: str, count: int) -> Finding:
    """Records that a broker could not pass on, and nobody has sent again."""
    return Finding(
        "records-aside",
        name,
        f"records that it could not pass on are set aside: {count}",
        "rmqkit set-aside list shows why; rmqkit set-aside resend --all sends those that can be read again,"
        " and passes over the others",
    )


def of_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Brokers of several versions; broker name -> version."""
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        yield Finding(
            "broker-versions",
            "cluster",
            f"the brokers have different versions: {listed}",
            "finish the upgrade: clients see the features of the broker that they happen to use",
        )


def no_route(topic: str, auto_create: Mapping[str, str]) -> Finding:
    """A topic that no broker has; `auto_create` has each broker's autoCreateTopicEnable."""
    create = f"create it: rmqkit topic create {topic}"
    off = sorted(name for name, value in auto_create.items() if value == "false")
    if off:
        text = f"no broker has it, and autoCreateTopicEnable is off on {', '.join(off)}"
        return Finding("no-route", topic, text, create)
    return Finding(
        "no-route", topic, "no broker has it", f"{create}, or send to it: autoCreateTopicEnable is on"
    )


def read_only_topic(topic: str, perms: Mapping[str, int]) -> Iterator[Finding]:
    """A topic that no broker lets write; broker name -> perm."""
    if perms and not any(perm & PERM_WRITE for perm in perms.values()):
        listed = ", ".join(f"{name} {perm}" for name, perm in sorted(perms.items()))
        yield Finding(
            "read-only-topic",
            topic,
            f"no broker may be written: perm {listed}",
            f"rmqkit topic create {topic} --perm 6, or mqadmin addWritePerm after a wipeWritePerm",
        )


def of_group(
    group: str,
    online: GroupConnections | None,
    before: Mapping[MessageQueue, Progress],
    after: Mapping[MessageQueue, Progress],
) -> Iterator[Finding]:
    """A group that nobody consumes, or that falls behind between two looks."""
    lag = sum(each.lag for each in after.values())
    if online is None:
        if lag:
            yield Finding(
                "no-consumer",
                group,
                f"{lag} messages wait, and no member is online",
                f"start its consumers, or delete it: rmqkit group delete {group} --yes",
            )
        return
    was = sum(each.lag for each in before.values())
    consumed = sum(each.committed for each in after.values()) - sum(
        each.committed for each in before.values()
    )
    if lag > was and online.message_model != BROADCASTING:
        text = f"its lag grew from {was} to {lag} while it consumed {consumed}"
        advice = "add members or handlers, up to one member for each queue; rmqkit group lag shows the queues"
        yield Finding("growing-lag", group, text, advice)
    versions = sorted({f"{each.language} {version_text(each.version)}" for each in online.members})
    languages = {each.language for each in online.members}
    if len(versions) > len(languages):
        yield Finding(
            "member-versions",
            group,
            f"its members have different versions: {', '.join(versions)}",
            "finish the upgrade of the consumers",
        )


def beyond_the_end(group: str, progress: Mapping[MessageQueue, Progress]) -> Iterator[Finding]:
    """Queues that end before the group's offset."""
    queues = {queue: each for queue, each in progress.items() if each.beyond}
    if queues:
        listed = ", ".join(
            f"{queue} {each.committed} (end {each.end})" for queue, each in sorted(queues.items())
        )
        yield Finding(
            "offset-beyond-end",
            group,
            f"its offsets are beyond the end: {listed}",
            "find out whether the store was replaced; a consumer goes on at the end. To read what is there:"
            f" rmqkit group reset {group}",
        )


def same_client_id(group: str, online: GroupConnections) -> Iterator[Finding]:
    """Members with one client id."""
    of_id: dict[str, list[str]] = {}
    for each in online.members:
        of_id.setdefault(each.client_id, []).append(each.address)
    for client_id, addresses in sorted(of_id.items()):
        if len(addresses) > 1:
            yield Finding(
                "same-client-id",
                group,
                f"the same client id {client_id} on {len(addresses)} connections: {', '.join(addresses)}",
                "give each process a client id of its own (client_id; Java: instanceName), or none: members"
                " with one id handle messages twice, or leave queues alone",
            )


def behind_retention(
    group: str, progress: Mapping[MessageQueue, Progress], stats: Mapping[MessageQueue, QueueStats]
) -> Iterator[Finding]:
    """Queues whose next message for the group has been deleted."""
    lost = {
        queue: stats[queue].min_offset - each.committed
        for queue, each in progress.items()
        if queue in stats and each.committed < stats[queue].min_offset and each.lag
    }
    if lost:
        topics = ", ".join(sorted({queue.topic for queue in lost}))
        yield Finding(
            "behind-retention",
            group,
            f"{sum(lost.values())} messages of {topics} were deleted before it consumed them",
            "raise fileReservedTime, or consume faster; the group goes on with the first message there is",
        )


def unequal_subscriptions(
    group: str, members: Mapping[str, Mapping[str, SubscriptionData]], retry: str
) -> Iterator[Finding]:
    """Members of a group that subscribe to different things; client id -> topic -> subscription. `retry` is
    the group's retry topic."""
    topics = sorted({topic for each in members.values() for topic in each} - {retry})
    for topic in topics:
        wanted = {
            client_id: (each[topic].expression_type or "TAG", each[topic].sub_string)
            if topic in each
            else None
            for client_id, each in members.items()
        }
        if len(set(wanted.values())) > 1:
            listed = "; ".join(
                f"{client_id}: {'nothing' if what is None else ' '.join(what)}"
                for client_id, what in sorted(wanted.items())
            )
            text = f"its members subscribe differently to {topic}: {listed}"
            advice = "give all members the same subscriptions, or groups of their own: messages are lost"
            yield Finding("unequal-subscriptions", group, text, advice)


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
