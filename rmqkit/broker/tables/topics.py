"""The topic table of a broker and `config/topics.json` (Java: TopicConfigManager; behaviour sheet, C6)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path

import msgspec
import trio

from rmqkit.broker.tables.saved_table import SavedTable, some_names
from rmqkit.config import Config
from rmqkit.errors import RequestRefused, StoreError
from rmqkit.limits import MAX_ANNOUNCEMENT_MS, MAX_AUTO_CREATED_TOPICS, MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.sysflag import PERM_INHERIT, PERM_RW
from rmqkit.model.topic import TopicConfig, TopicConfigTable
from rmqkit.plugin.clock import Clock
from rmqkit.protocol.codes import ResponseCode
from rmqkit.toolkit.unsaved import Unsaved, again_when_saved

_log = logging.getLogger(__name__)


class TopicTable(SavedTable[TopicConfig]):
    """Topics of one broker. Every change increments the data version.

    is_fenced   whether nothing may be created for clients: another broker may be the master
    last_record the physical offset of the last record of a topic, -1 without one
    on_delete   called with the name as soon as a topic is gone, before its name can be used again
    on_forget   called before a deletion is dropped from the journal: the deletion of what belonged to the
                topic must then be on the device. May raise OSError
    on_announce called to wait until others know the changes made so far
    """

    def __init__(self, config: Config, clock: Clock, directory: Path) -> None:
        super().__init__(
            clock, directory / "topics.json", TopicConfigTable, TopicConfig, "topic_config_table"
        )
        self._config = config
        self.is_fenced: Callable[[], bool] = lambda: False
        self.last_record: Callable[[str], int] = lambda _: -1
        self.on_delete: list[Callable[[str], None]] = []
        self.on_forget: list[Callable[[], Awaitable[None]]] = []
        self.on_announce: list[Callable[[], Awaitable[None]]] = []
        self._auto_created = 0
        #: Deleted topics in the journal that were not created again; see `recover`.
        self._deleted: set[str] = set()
        #: Those of which something could not be deleted.
        self._unremoved: set[str] = set()

    def load(self) -> None:
        """Load file and journal, and add the topics of every broker. Raises ConfigError when neither the file
        nor its `.bak`, or not the journal, can be read."""
        self._load()
        for topic in _built_in(self._config):
            self.configs.setdefault(topic.topic_name, topic)

    def configure(self, config: Config) -> None:
        """Apply changed settings."""
        self._config = config
        for topic in _built_in(config):
            self.configs.setdefault(topic.topic_name, topic)

    def registration_changed(self) -> None:
        """Report a change of the registration that is not a change of a topic: of the broker's permission."""
        self.data_version.next(self._clock.now_ms())
        self._unfolded = True
        for listener in self.on_change:
            listener()

    async def announced(self) -> None:
        """Wait until the name servers know the changes made so far, for MAX_ANNOUNCEMENT_MS at most (Java:
        registerBrokerAll, which waits for the answers)."""
        with trio.move_on_after(MAX_ANNOUNCEMENT_MS / 1000):
            async with trio.open_nursery() as nursery:
                for known in self.on_announce:
                    nursery.start_soon(known)

    def recover(self, stored: Mapping[str, Sequence[int]]) -> list[str]:
        """Compare the table with the store's queues (topic -> queue ids) after `load`. Returns the deleted
        topics that are still in the store.

        A topic missing in the table is restored with its queues and default permissions and written by the
        next fold, because its messages were acknowledged and the table may be an older version. A deletion
        may not have reached the store before a crash, and a replica may have got the records after it.
        """
        unknown = [
            name
            for name in stored
            if name not in self.configs and not names.is_system_topic(name) and names.lite_parts(name) is None
        ]
        deleted = [name for name in unknown if self.is_dead(name)]
        illegal = [name for name in unknown if names.topic_fault(name)]
        recovered = [name for name in unknown if name not in deleted and not names.topic_fault(name)]
        for name in recovered:
            queues = min(max(stored[name], default=0) + 1, MAX_QUEUES_PER_TOPIC)
            self.configs[name] = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        if recovered:
            self._unfolded = True
            self.data_version.next(self._clock.now_ms())
            _log.warning(
                "the store has %d topics that were not in topics.json; they are put back with default"
                " permissions: %s. Delete those you do not want, and correct the settings of the others",
                len(recovered),
                some_names(recovered),
            )
        if illegal:
            _log.warning(
                "the store has %d topics whose names are not allowed; they are not served: %s",
                len(illegal),
                some_names(illegal),
            )
        if deleted:
            _log.warning(
                "the store had queues of %d deleted topics, they are removed: %s",
                len(deleted),
                some_names(deleted),
            )
        return deleted

    def is_dead(self, topic: str) -> bool:
        """Whether the topic was deleted after its last record; it is then not in the table."""
        return topic in self.deletions and self._last_record(topic) < self.deletions[topic]

    def _last_record(self, name: str) -> int:
        return self.last_record(name)

    def _own_names(self) -> Set[str]:
        return {topic.topic_name for topic in _built_in(self._config)}

    @property
    def deleted(self) -> Collection[str]:
        """Deleted topics that were not created again and are still in the journal."""
        return self._deleted

    def get(self, topic: str) -> TopicConfig | None:
        return self.configs.get(topic)

    async def put(self, topic: TopicConfig) -> bool:
        """Create or replace, and wait for the device. Returns False when nothing changed. Raises
        RequestRefused for an illegal name or queue count, or when it cannot be written, without effect."""
        return await self._change(topic.topic_name, _checked(topic))

    async def put_all(self, topics: Sequence[TopicConfig]) -> None:
        """Write several topics at once. All are checked first. Raises RequestRefused; when one cannot be
        written, others may have been."""
        await self._change_all([(topic.topic_name, _checked(topic)) for topic in topics])

    async def replace(self, table: TopicConfigTable) -> None:
        """Take over the topics of another broker with its deletions and its version (Java: SlaveSynchronize,
        which also deletes what the table lacks). Raises RequestRefused when one is illegal, without effect,
        or cannot be written; others may have been."""
        entries = {topic.topic_name: _checked(topic) for topic in table.topic_config_table.values()}
        await self._replace(entries, table.data_version, table.deletions or {})

    async def know(self, queues: Iterable[tuple[str, int]]) -> None:
        """Let queues, (topic, queue id), with messages of another broker be read before its table comes:
        missing topics get default settings, others more queues. Illegal names, and topics that were deleted
        after their messages, are left out. Raises RequestRefused when one cannot be written."""
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            counts[topic] = max(counts.get(topic, 0), min(queue_id + 1, MAX_QUEUES_PER_TOPIC))
        wider = {topic: self._with_queues(topic, count) for topic, count in counts.items()}
        changed = [(topic, found) for topic, found in wider.items() if found is not None]
        if changed:
            _log.info(
                "%d topics have messages in queues that topics.json does not have yet; they get these queues,"
                " and new topics default settings, until the table of the master comes: %s",
                len(changed),
                some_names([topic for topic, _ in changed]),
            )
        await self._change_all(changed)

    def _with_queues(self, name: str, count: int) -> TopicConfig | None:
        """The topic with at least this number of queues; None when there is nothing to change."""
        known = self.configs.get(name)
        if known is None:
            if names.is_system_topic(name) or names.topic_fault(name) or self.is_dead(name):
                return None
            if not name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                count = max(count, self._config.default_topic_queue_nums)
            return TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
        if known.read_queue_nums >= count:
            return None
        more = max(known.write_queue_nums, count)
        return msgspec.structs.replace(known, read_queue_nums=count, write_queue_nums=more)

    async def delete(self, topic: str) -> bool:
        """Delete the topic, and wait for the device. Returns False when there was none. Sends to it wait
        meanwhile. Raises RequestRefused when it cannot be written; the topic then still exists."""
        return await self._change(topic, None)

    async def ensure(self, topic: str, queues: int, perm: int = PERM_RW) -> TopicConfig:
        """A topic that is required, created if it is missing, also on a fenced broker; waits until it is
        written. Raises RequestRefused when it cannot be written."""
        await trio.lowlevel.checkpoint()
        return await again_when_saved(lambda: self._required(topic, queues, perm))

    def require(self, topic: str, queues: int, perm: int = PERM_RW) -> TopicConfig:
        """The topic, created with that many queues if it is missing (retry, dead-letter and system topics).
        Raises Unsaved while it is being created, RequestRefused when it may not be."""
        if topic not in self.configs:
            self._check_master(topic)
        return self._required(topic, queues, perm)

    def _check_master(self, topic: str) -> None:
        if self.is_fenced():
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic {topic} is not created: this broker is fenced, another one may be the master",
            )

    def _required(self, topic: str, queues: int, perm: int) -> TopicConfig:
        found = self.settled(topic)
        if found is None:
            raise self._create(
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            )
        return found

    def auto_create(self, topic: str, template: str, client_queues: int) -> None:
        """Create a topic on first send from a template with the inherit permission (Java:
        createTopicInSendMessageMethod), and raise Unsaved; returns if that is disabled. Raises RequestRefused
        when it may not be created."""
        base = self.configs.get(template)
        if base is None or not base.perm & PERM_INHERIT:
            return
        if template == names.TEMPLATE_TOPIC and not self._config.auto_create_topic_enable:
            return
        self._check_master(topic)
        queues = max(0, min(client_queues, base.write_queue_nums))
        raise self._create(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=base.perm & ~PERM_INHERIT,
                topic_filter_type=base.topic_filter_type,
                topic_sys_flag=base.topic_sys_flag,
            )
        )

    def table(self) -> TopicConfigTable:
        """A copy for registration and for answering GET_ALL_TOPIC_CONFIG."""
        return msgspec.structs.replace(self._other_fields(), topic_config_table=dict(self.configs))

    def _create(self, topic: TopicConfig) -> Unsaved:
        """Begin to create a topic for a client; returns the error to raise."""
        if self._auto_created >= MAX_AUTO_CREATED_TOPICS:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"{MAX_AUTO_CREATED_TOPICS} topics were created by clients since the start; create topics by"
                " hand",
            )
        change = self.submit(topic.topic_name, _checked(topic))
        assert change is not None, "a missing topic is not what it is to become"
        self._auto_created += 1
        change.when_settled(self._count)
        return Unsaved(change)

    def _count(self, failure: RequestRefused | None) -> None:
        if failure is not None:
            self._auto_created -= 1

    def _apply(self, name: str, config: TopicConfig | None, log_end: int) -> None:
        super()._apply(name, config, log_end)
        self._deleted.discard(name)
        self._unremoved.discard(name)
        if config is None:
            self._deleted.add(name)

    def _remove(self, name: str) -> None:
        for listener in self.on_delete:
            try:
                listener(name)
            except (OSError, StoreError) as error:
                self._unremoved.add(name)
                _log.error("what topic %s left cannot be removed now, trying again: %s", name, error)

    async def _before_drop(self) -> None:
        deleted, self._deleted = self._deleted, set()
        try:
            again, self._unremoved = self._unremoved, set()
            for name in again:
                self._remove(name)
            if self._unremoved:
                raise OSError(f"what deleted topics left cannot be removed: {some_names(self._unremoved)}")
            if deleted:
                for settle in self.on_forget:
                    await settle()
        except BaseException:
            self._deleted |= deleted - self.configs.keys()
            raise

    def _other_fields(self) -> TopicConfigTable:
        return TopicConfigTable(
            data_version=msgspec.structs.replace(self.data_version),
            deletions=dict(self.deletions) or msgspec.UNSET,
        )


def _checked(topic: TopicConfig) -> TopicConfig:
    """The topic, after a check of its name and counts. Raises RequestRefused for an illegal name or queue
    count."""
    fault = names.topic_fault(topic.topic_name)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    for count in (topic.read_queue_nums, topic.write_queue_nums):
        if not 0 <= count <= MAX_QUEUES_PER_TOPIC:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"a topic has 0 to {MAX_QUEUES_PER_TOPIC} queues, not {count}"
            )
    return topic


def _built_in(config: Config) -> list[TopicConfig]:
    """Topics that exist from the start (store-format sheet, section 1.7)."""

    def topic(name: str, queues: int, perm: int = PERM_RW) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    topics = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(config.broker_cluster_name, 16, PERM_INHERIT | (PERM_RW if config.cluster_topic_enable else 0)),
        topic(config.broker_name, 1, PERM_INHERIT | (PERM_RW if config.broker_topic_enable else 0)),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.reply_topic(config.broker_cluster_name), 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(topic(names.TEMPLATE_TOPIC, config.default_topic_queue_nums, PERM_INHERIT | PERM_RW))
    if config.trace_topic_enable:
        topics.append(topic(names.TRACE_TOPIC, 1))
    return topics
