"""Limits of the replication, each with its reason."""

from __future__ import annotations

#: Connections to the replication port, including those that have not reported an offset yet. A broker has a
#: few slaves; the rest are strangers.
MAX_CONNECTIONS = 64
#: Bytes of the log that one connection gets per turn of the event loop, so that a slave that catches up does
#: not delay senders.
TURN_BYTES = 256 * 1024
#: Time for which new messages are gathered for a slave that no sender waits for (Java: up to 100 ms).
GATHERED_MS = 5
#: Time after which an idle connection tells its slave what has been confirmed since.
TELL_MS = 100
#: Bytes of one frame's body: Apache's slave has a buffer of 4 MiB, which must hold a frame with its head.
MAX_BODY_BYTES = 4 * 1024 * 1024 - 64
#: Size of one read from a master.
READ_BYTES = 256 * 1024
#: Body of a master's answer with one of its tables.
MAX_TABLE_BYTES = 16 * 1024 * 1024
#: Body of a greeting: names, and one entry for each epoch of the log.
MAX_GREETING_BYTES = 1024 * 1024
#: An introduction: the header fields of a signed request, perhaps with a token.
MAX_INTRODUCTION_BYTES = 64 * 1024
#: Members of an elected group that a master knows. A group has a few; more have wrong names.
MAX_MEMBERS = 64
#: Names in a greeting: those of brokers and clusters are shorter, and a master keeps one for each member.
MAX_NAME_CHARS = 255
