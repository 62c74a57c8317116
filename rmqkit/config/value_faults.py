"""Checks of the kernel's settings for values that have the right type but cannot work."""

from __future__ import annotations

from rmqkit.config import tls as tls_settings
from rmqkit.config.schema import STORE_DISPATCHERS, Config
from rmqkit.errors import Fault
from rmqkit.limits import MAX_RECORD_REST_BYTES
from rmqkit.model.names import group_fault, topic_fault
from rmqkit.rocketmq_settings import bare


def _is_slave(config: Config) -> bool:
    """Whether brokerRole, which is not a setting of the kernel, is that of a slave."""
    return any(bare(key) == bare("brokerRole") and value == "SLAVE" for key, value in config.unknown.items())


def value_faults(config: Config) -> list[Fault]:
    """Faults of values of the right type."""
    faults: list[tuple[str, str]] = []
    if not 0 <= config.listen_port <= 65_535:
        faults.append(("listenPort", "must be between 0 and 65535"))
    if config.broker_id and not _is_slave(config):
        faults.append(("brokerId", "other than 0 is a slave's: set brokerRole = SLAVE as well"))
    elif config.broker_id <= 0 and _is_slave(config):
        faults.append(("brokerId", "brokerRole is SLAVE, and a slave has one above 0"))
    if config.mapped_file_size_commit_log < config.max_message_size + MAX_RECORD_REST_BYTES:
        faults.append(
            ("mappedFileSizeCommitLog", "must hold the largest message: maxMessageSize plus 64 KiB")
        )
    named = {
        "brokerName": topic_fault(config.broker_name),
        "brokerClusterName": group_fault(config.broker_cluster_name),
    }
    faults += [(key, fault) for key, fault in named.items() if fault]
    positive = ("maxMessageSize", "transientStorePoolSize")
    faults += [(key, "must be positive") for key in positive if config.setting(key) <= 0]
    if "," in config.store_path_commit_log:
        fault = "names several paths, and the log is kept in one: join the disks below the file system"
        faults.append(("storePathCommitLog", fault))
    faults += tls_settings.faults(config)
    own = [name for name in STORE_DISPATCHERS if name in config.dispatchers]
    if len(set(config.dispatchers)) < len(config.dispatchers):
        faults.append(("dispatchers", "names one twice"))
    elif list(config.dispatchers[: len(own)]) != own:
        fault = f"must begin with {', '.join(own)}: the store does these with the append, before all others"
        faults.append(("dispatchers", fault))
    where = {
        key: f"setting {key} = {config.setting(key)!r} ({config.sources.get(key, 'default')})"
        for key, _ in faults
    }
    return [Fault(key, f"{where[key]}: {fault}") for key, fault in faults]
