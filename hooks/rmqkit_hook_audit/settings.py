"""What can be set in the table [plugins.audit]."""

from __future__ import annotations

from typing import Literal

import msgspec

from rmqkit.model.names import topic_fault

Kind = Literal["send", "consume", "sendBack", "request", "create"]


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the audit.

    file        relative to storePathRootDir; empty writes none
    max_bytes   of a file before the next one is begun
    keep_files  older files that are kept, as FILE.1 (the newest), FILE.2 and so on
    sync        bring each write to the device
    topic       events go to this topic of the broker as well; empty sends none
    events      kinds of events that are wanted
    queue_size  events that may wait to be written, counting each message of a send, and each KiB of bodies and properties that is kept
    linger_ms   events are written together with those that come so soon after them
    body_bytes  so many bytes of each body sent are written down, as base64
    properties  names of message properties that are written down
    """

    file: str = "audit/audit.jsonl"
    max_bytes: int = 64 * 1024 * 1024
    keep_files: int = 8
    sync: bool = False
    topic: str = ""
    events: tuple[Kind, ...] = ("send", "consume", "sendBack", "request", "create")
    queue_size: int = 65_536
    linger_ms: int = 100
    body_bytes: int = 0
    properties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_bytes < 4096 or self.queue_size < 1 or min(self.keep_files, self.body_bytes, self.linger_ms) < 0:
            raise ValueError("maxBytes is at least 4096, queueSize at least 1, keepFiles, bodyBytes and lingerMs are not negative")
        if not self.file and not self.topic:
            raise ValueError("file and topic are both empty: nothing would be written")
        if self.topic and (fault := topic_fault(self.topic)):
            raise ValueError(f"topic: {fault}")
