"""The examination of a cluster: it asks name servers, brokers and groups, and collects what is wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import anyio

from rmqkit.client.cluster import diagnosis
from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.diagnosis import Finding
from rmqkit.client.cluster.group_admin import GroupAdmin, GroupConnections, Progress
from rmqkit.client.cluster.set_aside_views import records_aside
from rmqkit.client.cluster.side_by_side import side_by_side
from rmqkit.errors import NoRoute, RmqError
from rmqkit.model.names import PRESET_GROUPS, is_system_group, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import ClusterInfo

#: Time between the two looks at the lag of the groups.
INTERVAL_S = 2.0


class Examination:
    """Collects findings. A part that cannot be examined is a finding, too, and does not end the others.

    name_servers  their addresses; each is asked
    topics        that are examined besides the brokers and groups
    only          the groups to examine; none: all groups of applications
    interval_s    time between the two looks at the lag of the groups
    """

    def __init__(
        self,
        admin: Admin,
        groups: GroupAdmin,
        name_servers: Sequence[str],
        *,
        topics: Sequence[str] = (),
        only: Sequence[str] = (),
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._admin = admin
        self._groups = groups
        self._name_servers = name_servers
        self._topics = topics
        self._only = only
        self._interval_s = interval_s
        self._found: list[Finding] = []
        self._settings: dict[str, Mapping[str, str]] = {}

    async def run(self) -> list[Finding]:
        """All findings, in the order of the checks."""
        info = await self._known()
        if info is None:
            return self._found
        reached = await self._examine_brokers(info)
        for topic in self._topics:
            await self._examine_topic(topic)
        # Groups are known to every master; one that is down would end each query.
        if reached:
            aside = await records_aside(self._admin, self._groups)
            self._found += [diagnosis.records_aside(name, count) for name, count in aside.items()]
            await self._examine_groups()
        return self._found

    async def _known(self) -> ClusterInfo | None:
        """What the first name server that answers knows."""
        views: dict[str, ClusterInfo] = {}
        for address in self._name_servers:
            try:
                views[address] = await self._admin.cluster_info_of(address)
            except RmqError as error:
                self._found.append(diagnosis.unreachable_name_server(address, error))
        if not views:
            return None
        known = {address: sorted(view.broker_addr_table) for address, view in views.items()}
        if len({tuple(names) for names in known.values()}) > 1:
            listed = "; ".join(f"{address}: {', '.join(names) or 'none'}" for address, names in known.items())
            advice = "give every broker all name servers (namesrvAddr)"
            self._found.append(
                Finding(
                    "name-servers-differ", "name servers", f"they know different brokers: {listed}", advice
                )
            )
        info = next(iter(views.values()))
        if not info.broker_addr_table:
            advice = "start a broker, with namesrvAddr set to this name server"
            self._found.append(Finding("no-broker", "cluster", "no broker has registered", advice))
            return None
        return info

    async def _examine_brokers(self, info: ClusterInfo) -> bool:
        """Whether all masters answer."""
        versions: dict[str, str] = {}
        complete = True
        for name, data in sorted(info.broker_addr_table.items()):
            if data.master is None:
                advice = "start its master: clients cannot send to it"
                self._found.append(Finding("no-master", name, "it has no master", advice))
            for number, address in sorted(data.broker_addrs.items()):
                subject = name if number == 0 else f"{name} (id {number})"
                asked_ms = _now_ms()
                try:
                    table = await self._admin.runtime_info(address)
                    answered_ms = _now_ms()
                    settings = await self._admin.broker_settings(address)
                except RmqError as error:
                    self._found.append(
                        diagnosis.unreachable(subject, address, self._name_servers, str(error))
                    )
                    complete = complete and number != 0
                    continue
                versions[subject] = table.get("brokerVersionDesc", "unknown")
                self._found += diagnosis.of_runtime(subject, table, asked_ms, answered_ms)
                self._found += diagnosis.of_settings(subject, settings)
                self._settings[subject] = settings
                if number == 0:
                    self._found += await self._missing_replicas(subject, address, settings)
        self._found += diagnosis.of_versions(versions)
        return complete

    async def _missing_replicas(
        self, name: str, address: str, settings: Mapping[str, str]
    ) -> Sequence[Finding]:
        wanted = diagnosis.copies_wanted(settings)
        if wanted == 1:
            return []
        try:
            status = await self._admin.replication(address)
        except RmqError as error:
            advice = "look at its log: it does not tell which brokers have its messages"
            return [Finding("missing-replica", name, str(error), advice)]
        return list(diagnosis.missing_replicas(name, wanted, status.in_sync_slave_nums + 1))

    async def _examine_topic(self, topic: str) -> None:
        route = await self._admin.route(topic)
        if route is None:
            auto = {name: each.get("autoCreateTopicEnable", "") for name, each in self._settings.items()}
            self._found.append(diagnosis.no_route(topic, auto))
            return
        perms = {each.broker_name: each.perm for each in route.queue_datas}
        self._found += diagnosis.read_only_topic(topic, perms)

    async def _examine_groups(self) -> None:
        groups = self._groups
        known = await groups.configs()
        wanted: Sequence[str] = self._only or [
            group for group in known if not is_system_group(group) and group not in PRESET_GROUPS
        ]
        for group in wanted:
            if group not in known:
                advice = "start a consumer of it, or create it; rmqkit group list lists the groups"
                self._found.append(Finding("unknown-group", group, "no broker knows it", advice))
        before = dict(zip(wanted, await side_by_side(groups.progress, wanted), strict=True))
        await anyio.sleep(self._interval_s)

        async def examined(group: str) -> list[Finding]:
            online, after = await groups.connections(group), await groups.progress(group)
            found = list(diagnosis.of_group(group, online, before[group], after))
            found += diagnosis.beyond_the_end(group, after)
            found += await self._retention(group, after)
            if online is not None:
                found += diagnosis.same_client_id(group, online)
                found += await self._subscriptions(group, online)
            return found

        for found in await side_by_side(examined, wanted):
            self._found += found

    async def _retention(self, group: str, progress: Mapping[MessageQueue, Progress]) -> list[Finding]:
        found: list[Finding] = []
        for topic in sorted({queue.topic for queue, each in progress.items() if each.lag}):
            try:
                stats = await self._admin.topic_stats(topic)
            except NoRoute:
                continue
            mine = {queue: each for queue, each in progress.items() if queue.topic == topic}
            found += diagnosis.behind_retention(group, mine, stats)
        return found

    async def _subscriptions(self, group: str, online: GroupConnections) -> list[Finding]:
        members = {}
        found: list[Finding] = []
        for member in online.members:
            try:
                members[member.client_id] = await self._groups.subscriptions_of(group, member)
            except RmqError as error:
                text = f"its member {member.client_id} at {member.address} does not answer: {error}"
                advice = "look at that process: it hangs, or it is too old to answer"
                found.append(Finding("silent-member", group, text, advice))
        return [*found, *diagnosis.unequal_subscriptions(group, members, retry_topic(group))]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
