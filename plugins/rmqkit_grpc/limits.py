"""Limits of gRPC, each with its reason."""

from __future__ import annotations

from rmqkit.limits import MAX_FRAME_BYTES

#: Calls of one connection that have not ended (SETTINGS_MAX_CONCURRENT_STREAMS). A client has one connection
#: for each endpoint, with a held receive for each topic and many sends at a time.
MAX_CALLS_PER_CONNECTION = 1_024
#: Clients of one connection; from here on those are forgotten that have ended.
MAX_IDLE_SESSIONS = 1_024
#: The metadata of one call, as HTTP/2 counts it; a client sends about 600 bytes.
MAX_HEADER_LIST_BYTES = 16 * 1024
#: The same before it is decompressed, and the number of its frames.
MAX_BLOCK_BYTES = 2 * MAX_HEADER_LIST_BYTES
MAX_CONTINUATIONS = 16
#: One message of gRPC, as long as a frame of remoting.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES
#: What a client may send before it hears that bytes were taken: a message of 4 MiB needs no round trip.
STREAM_WINDOW_BYTES = 4 * 1024 * 1024 + 64 * 1024
CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
#: Unfinished messages of all connections. Above it, the oldest are refused; those that are smaller than the
#: second number are not counted.
MAX_UNFINISHED_BYTES = 128 * 1024 * 1024
COUNTED_UNFINISHED_BYTES = 4 * 1024
#: Calls that one connection may reset within this time: each costs a call and brings nothing (rapid reset).
MAX_RESETS = 1_000
RESETS_PERIOD_MS = 10_000
#: Bytes of answers that wait for the windows of one connection, and of all. Above these, calls are refused.
MAX_WAITING_BYTES = 16 * 1024 * 1024
MAX_ALL_WAITING_BYTES = 512 * 1024 * 1024
#: A connection whose client lets so long no byte of them through is closed.
MAX_STALL_MS = 60_000
#: Size of one read: what it brings is handled without a pause, so control frames must be few. Reads that
#: bring bodies may be larger.
READ_BYTES = 32 * 1024
#: Messages in one SendMessage; official clients send one.
MAX_MESSAGES_PER_SEND = 1_024
#: Topics or subscriptions in the settings of a client.
MAX_SETTINGS_ENTRIES = 10_000
#: RocketMQ's limits of a message (gRPC sheet, section 9).
MAX_USER_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16 * 1024
MAX_MESSAGE_GROUP_BYTES = 63
MAX_TRANSACTION_RECOVERY_S = 3_600
#: Bodies of one answer after they were inflated; further ones stay as they are stored.
MAX_INFLATED_BYTES = 8 * 1024 * 1024
#: Receives.
MAX_RECEIVE_BATCH = 32
MIN_INVISIBLE_MS = 10_000
MAX_INVISIBLE_MS = 12 * 3_600_000
#: Leases that the server renews: for how long each time, how long before their end, how often it looks, how
#: many of one client, and until when.
RENEWED_INVISIBLE_MS = 60_000
RENEW_BEFORE_MS = 20_000
RENEWAL_LOOK_MS = 5_000
MAX_RENEWED = 16_384
MAX_RENEWALS_MS = 3 * 3_600_000
MAX_POLLING_MS = 20_000
#: What is left of the deadline of a call that waits for messages: the broker looks once a second which calls
#: have waited long enough, and the answer has its way back.
POLLING_RESERVE_MS = 1_500
#: Until calls in flight are answered when a server stops.
DRAIN_MS = 10_000
#: What a proxy passes on may take this long, besides what a broker may hold it.
PASSING_TIMEOUT_MS = 5_000
#: A proxy: for how long it knows settings of topics and groups, of those that no broker has yet, and of how
#: many; how often it looks whether the cluster is there; bodies, which each broker limits besides; and the
#: queues of a topic that its first message creates.
KNOWN_MS = 30_000
KNOWN_NEW_MS = 1_000
MAX_KNOWN = 100_000
CLUSTER_LOOK_MS = 10_000
#: Groups, and topics of producers, that a proxy registers with brokers: a heartbeat contains all of them.
MAX_PROXIED_GROUPS = 50_000
MAX_PROXIED_BODY_BYTES = 4 * 1024 * 1024
QUEUES_OF_NEW_TOPICS = 4
#: Clients of groups that broadcast, and queues of one of them, whose places are kept.
MAX_BROADCAST_CLIENTS = 10_000
MAX_BROADCAST_QUEUES = 1_024
