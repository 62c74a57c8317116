"""The settings in the table [plugins.audit]."""

from __future__ import annotations

from typing import Literal

import msgspec

from rmqkit.config import PauseMs
from rmqkit.model.names import topic_fault

Kind = Literal["send", "consume", "sendBack", "request", "create"]


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the audit.

    file        relative to storePathRootDir; empty for no file
    max_bytes   size at which a file is rotated
    keep_files  number of older files to keep, as FILE.1 (the newest), FILE.2 and so on
    sync        whether to flush each write to the device
    topic       topic of this broker for events; empty for none
    events      kinds of events to record
    queue_size  maximum number of queued events, counting each message of a send, and each KiB of recorded
                bodies and properties
    linger_ms   how long to wait for further events to write them together
    body_bytes  number of bytes of each sent body to record, as base64
    properties  names of message properties to record
    """

    file: str = "audit/audit.jsonl"
    max_bytes: int = 64 * 1024 * 1024
    keep_files: int = 8
    sync: bool = False
    topic: str = ""
    events: tuple[Kind, ...] = ("send", "consume", "sendBack", "request", "create")
    queue_size: int = 65_536
    linger_ms: PauseMs = 100
    body_bytes: int = 0
    properties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_bytes < 4096 or self.queue_size < 1 or min(self.keep_files, self.body_bytes) < 0:
            raise ValueError(
                "maxBytes is at least 4096, queueSize at least 1, keepFiles and bodyBytes are not negative"
            )
        if not self.file and not self.topic:
            raise ValueError("file and topic are both empty: nothing would be written")
        if self.topic and (fault := topic_fault(self.topic)):
            raise ValueError(f"topic: {fault}")
