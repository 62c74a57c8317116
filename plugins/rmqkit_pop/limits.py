"""Limits of pop consumption: what a client may ask for, and what it may make grow."""

from __future__ import annotations

#: Messages of one pop (wire-protocol sheet, section 3.6).
MAX_BATCH = 32
#: The longest lease: a client that is gone holds up a message no longer than this.
MAX_INVISIBLE_MS = 12 * 3_600_000
#: The longest wait of a held pop.
MAX_POLL_MS = 300_000
#: Bytes of messages in one answer; the first message is always accepted.
MAX_ANSWER_BYTES = 262_144
#: Queue units that one pop looks at in a queue, where a filter rejects most.
MAX_SCANNED_UNITS = 3_200
#: Unfinished messages of an ordered queue: those behind wait until one of them is finished.
MAX_WINDOW = 1_024
#: Acknowledgements in one request.
MAX_BATCH_ACKS = 4_096
#: Characters of an attempt id.
MAX_ATTEMPT_ID = 128
#: Requests of groups and topics in messageRequestMode.json.
MAX_REQUEST_MODES = 10_000
#: A lease whose record is followed by this many in its revive queue, or is as old as this, is written again,
#: so that a restart reads few records and retention removes none that counts.
REWRITE_RECORDS = 65_536
REWRITE_MS = 1_800_000
#: Queues of groups that are kept without leases.
MAX_QUEUES_KEPT = 10_000
