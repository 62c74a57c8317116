"""The topic table of a broker and `config/topics.json` (Java: TopicConfigManager; behaviour sheet, C6)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from rmqkit.abc import Clock
from rmqkit.broker.json_file import JsonFile
from rmqkit.config import Config
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_AUTO_CREATED_TOPICS, MAX_QUEUES_PER_TOPIC
from rmqkit.model import names
from rmqkit.model.sysflag import PERM_INHERIT, PERM_RW
from rmqkit.model.topic import DataVersion, TopicConfig, TopicConfigTable
from rmqkit.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)
#: Topics that a warning names; there may be thousands.
_MOST_NAMED = 20


class TopicTable:
    """Topics of one broker. Every change moves the data version, is written at once (atomically, with a `.bak`) and told to `on_change`."""

    def __init__(self, config: Config, clock: Clock, directory: Path) -> None:
        self._config = config
        self._clock = clock
        self._file = JsonFile(directory / "topics.json", TopicConfigTable)
        self.configs: dict[str, TopicConfig] = {}
        self.data_version = DataVersion()
        self.on_change: list[Callable[[], None]] = []
        self._auto_created = 0
        #: The file is older than the table: a write failed.
        self._unsaved = False

    def load(self) -> None:
        """Read the file and add the topics every broker has. Raises ConfigError when neither the file nor its `.bak` can be read."""
        stored = self._file.load()
        if stored is not None:
            self.configs = dict(stored.topic_config_table)
            self.data_version = stored.data_version
        for topic in _built_in(self._config):
            self.configs.setdefault(topic.topic_name, topic)

    def warn_of_unknown(self, stored: Iterable[str]) -> None:
        """Log which topics of the store do not stand in the table. They keep their place in the store and are not served; to forget them by itself would
        be wrong if it is the table that is old."""
        unknown = sorted(topic for topic in stored if topic not in self.configs and not names.is_system_topic(topic))
        if unknown:
            _log.warning(
                "the store has %d topics that are not in topics.json and are not served: %s. Were they deleted, and came back when queues were made again "
                "from the log? Then `mqadmin cleanUnusedTopic` forgets them. Is the file older than they are? Then create them again",
                len(unknown),
                ", ".join(unknown[:_MOST_NAMED]) + (", ..." if len(unknown) > _MOST_NAMED else ""),
            )

    def get(self, topic: str) -> TopicConfig | None:
        return self.configs.get(topic)

    def put(self, topic: TopicConfig) -> bool:
        """Create or replace; False (and nothing written) when it stood so already. Raises RequestRefused for an illegal name or queue count."""
        fault = names.topic_fault(topic.topic_name)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= MAX_QUEUES_PER_TOPIC:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"a topic has 0 to {MAX_QUEUES_PER_TOPIC} queues, not {count}")
        if self.configs.get(topic.topic_name) == topic and not self._unsaved:
            return False
        self.configs[topic.topic_name] = topic
        self._changed()
        return True

    def delete(self, topic: str) -> bool:
        """False when there was none."""
        if self.configs.pop(topic, None) is None and not self._unsaved:
            return False
        self._changed()
        return True

    def ensure(self, topic: str, queues: int, perm: int = PERM_RW) -> TopicConfig:
        """The topic, created with that many queues when it is missing (retry, dead-letter and system topics)."""
        found = self.configs.get(topic)
        if found is None:
            self._count_created()
            found = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            self.put(found)
        return found

    def auto_create(self, topic: str, template: str, client_queues: int) -> TopicConfig | None:
        """Create a topic on first send from a template with the inherit permission (Java: createTopicInSendMessageMethod); None when that is off."""
        base = self.configs.get(template)
        if base is None or not base.perm & PERM_INHERIT:
            return None
        if template == names.TEMPLATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        self._count_created()
        queues = max(0, min(client_queues, base.write_queue_nums))
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=base.perm & ~PERM_INHERIT,
            topic_filter_type=base.topic_filter_type,
            topic_sys_flag=base.topic_sys_flag,
        )
        self.put(created)
        return created

    def table(self) -> TopicConfigTable:
        """A copy for registration and for answering GET_ALL_TOPIC_CONFIG."""
        return TopicConfigTable(data_version=msgspec.structs.replace(self.data_version), topic_config_table=dict(self.configs))

    def _count_created(self) -> None:
        if self._auto_created >= MAX_AUTO_CREATED_TOPICS:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"{MAX_AUTO_CREATED_TOPICS} topics were created by clients since the start; create topics by hand",
            )
        self._auto_created += 1

    def _changed(self) -> None:
        self.data_version.next(self._clock.now_ms())
        self._unsaved = True
        self._file.save(self.table())
        self._unsaved = False
        for listener in self.on_change:
            listener()


def _built_in(config: Config) -> list[TopicConfig]:
    """Topics that are there from the start (store-format sheet, section 1.7)."""

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
