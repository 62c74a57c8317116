"""Limits of the kernel and of several plugins, each with its reason. Units are in the names."""

from __future__ import annotations

#: A frame including its own 4-byte length prefix (Java: NettyDecoder, frameMaxLength). A larger one closes
#: the connection.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: The body of an answer, with room for the frame's header.
MAX_BODY_BYTES = MAX_FRAME_BYTES - 65_536
#: A frame header. Java allows 0xFFFFFF; a real header has at most a few KiB plus 32 767 bytes of properties
#: (six times that with JSON escapes).
MAX_HEADER_BYTES = 1024 * 1024
#: Nesting of JSON in headers and bodies; real bodies have a depth of four or five. Protects the parser's
#: stack.
MAX_JSON_DEPTH = 64
#: JSON that only the tolerant parser accepts is parsed in Python, some microseconds per element; real bodies
#: of that kind are small tables.
MAX_LOOSE_JSON_BYTES = 2 * 1024 * 1024
#: Properties of one message: their length is a signed 16-bit number on disk.
MAX_PROPERTIES_BYTES = 32_767
#: What a record and the blank record behind it have besides the body, at most: a file of the log has as much
#: room besides the largest body.
MAX_RECORD_REST_BYTES = 65_536
#: A topic name (Java: Validators, TopicValidator); retry and dead-letter topics may be longer.
MAX_TOPIC_LENGTH = 127
MAX_DERIVED_TOPIC_LENGTH = 255
#: A group name (Java: Validators.CHARACTER_MAX_LENGTH of 5.x).
MAX_GROUP_LENGTH = 120
#: Messages of one batch request: the smallest has 22 bytes, so a 4 MiB body could contain 190 000. The answer
#: has up to 57 characters for each and must fit into a header.
MAX_BATCH_MESSAGES = 16_384
#: Pairs of group and topic whose last pulls a broker remembers, only for statistics; without it the committed
#: offset is shown.
MAX_PULL_OFFSETS = 65_536
#: Pairs of group and topic with an offset reset that no pull has seen yet. If one is dropped, the offset
#: table still has the reset offset; only the one-time rewind of a running pull is lost.
MAX_RESET_OFFSETS = 65_536
#: Topics, or pairs of group and topic, with message counts; each takes a few hundred bytes.
MAX_STATS_ITEMS = 65_536
#: Time for which an administrative change of topics waits for the name servers to know it.
MAX_ANNOUNCEMENT_MS = 3_000
#: Queues of one topic; the offset table and the consume queues grow with it.
MAX_QUEUES_PER_TOPIC = 4_096
#: Unanswered requests of one connection before the server stops reading from it. Held pulls do not count.
MAX_IN_FLIGHT_PER_CONNECTION = 4_096
#: First bytes that choose a protocol of a plugin: the preface of HTTP/2 has 24.
MAX_PREFIX_BYTES = 64
#: Peers on one connection of a plugin's protocol, which may carry requests of several clients.
MAX_PEERS_PER_CONNECTION = 4_096
#: Held pulls of one connection: a client holds one per queue and group.
MAX_HELD_PULLS_PER_CONNECTION = 16_384
#: Held pulls of all connections, and their memory: a pull takes some 2.5 KB, and its subscription may be as
#: long as a header.
MAX_HELD_PULLS = 131_072
MAX_HELD_PULL_BYTES = 512 * 1024 * 1024
#: Requests of one connection that are processed before other connections get a turn.
MAX_REQUESTS_PER_TURN = 64
#: Bodies of requests of several connections that are processed together.
MAX_JOINED_BYTES = 1024 * 1024
#: Bytes of incomplete frames of all connections of a server, and of what those that are being completed will
#: take. A frame may have 16 MB, and a client may never send its end. Up to the second number all connections
#: are read, above it only as many as fit.
MAX_UNFINISHED_BYTES = 128 * 1024 * 1024
FREELY_READ_UNFINISHED_BYTES = 96 * 1024 * 1024
#: While connections wait for that memory: what a frame must bring within so many looks (a quarter of a second
#: each), and what all frames together must bring within twice as many, or they are closed.
MIN_FRAME_PROGRESS_BYTES = 16 * 1024
MIN_PROGRESS_BYTES = 1024 * 1024
LOOKS_WITHOUT_PROGRESS = 8
#: Incomplete frames smaller than this are not counted: with the maximum number of connections they add at
#: most half of the limit.
COUNTED_UNFINISHED_BYTES = 4 * 1024
#: Unsent bytes of one connection before the server stops reading from it.
MAX_UNSENT_BYTES_PER_CONNECTION = 16 * 1024 * 1024
#: Size of one read from a socket; under load several requests arrive together.
READ_CHUNK_BYTES = 256 * 1024
#: Capacity of a commit buffer per unit of `transientStorePoolSize`. Java's buffers are as large as a log
#: file; here senders wait for the commit, so the buffer only has to hold what arrives during one write.
COMMIT_BUFFER_BYTES = 16 * 1024 * 1024
#: A connection without traffic in either direction is closed after this time (Java: NettyServerConfig).
IDLE_TIMEOUT_MS = 120_000
#: Simultaneous connections of one listener.
MAX_CONNECTIONS = 16_384
#: File descriptors reserved from connections, at most half of the process' limit: the store maps up to 384
#: queue files, opens segments and index files, and tables are written through new files, all of which must
#: work when strangers use every connection.
RESERVED_DESCRIPTORS = 512
#: Topics and groups that a broker creates automatically for clients; otherwise a hostile client could fill
#: the disk with names.
MAX_AUTO_CREATED_TOPICS = 65_536
MAX_AUTO_CREATED_GROUPS = 65_536
#: Deletions that a table remembers, the newest ones: a replica that was away learns of them.
MAX_REMEMBERED_DELETIONS = 4_096
#: Log lines of one kind per minute that peers can cause, and number of kinds.
MAX_LOG_LINES_PER_MINUTE = 100
MAX_LOG_KINDS = 1_024
#: What brokers and name servers agree on: lengths of texts in a registration (replication address, topic
#: name, filter server), and number of filter servers.
MAX_REGISTERED_TEXT_LENGTH = 255
MAX_FILTER_SERVERS = 64
#: A decompressed message body accepted by a client: the default limit of bodies is 4 MiB, servers may allow
#: more.
MAX_INFLATED_BODY_BYTES = 64 * 1024 * 1024
#: Decompressed bodies of one query answer; further bodies stay compressed.
MAX_INFLATED_QUERY_BYTES = 256 * 1024 * 1024
#: Subscriptions and groups in one heartbeat.
MAX_HEARTBEAT_ENTRIES = 10_000
#: Length of a client id; Java's consist of an address, a process id and a unit name.
MAX_CLIENT_ID_LENGTH = 512
#: Producer and consumer groups of one connection, which belongs to one application.
MAX_GROUPS_PER_CONNECTION = 4_096
#: The same for all connections; a membership takes about half a KB.
MAX_MEMBERSHIPS = 131_072
#: Queue locks of ordered consumers, and their memory: one per group and queue, until a minute after its last
#: renewal.
MAX_QUEUE_LOCKS = 131_072
MAX_QUEUE_LOCK_BYTES = 64 * 1024 * 1024
#: Body of a request to lock or unlock queues: the queues of one client on one broker.
MAX_LOCK_BODY_BYTES = 1024 * 1024
#: Memory of one group's subscriptions, and of all: an expression may otherwise be as long as a heartbeat.
MAX_GROUP_SUBSCRIPTION_BYTES = 1024 * 1024
MAX_SUBSCRIPTION_BYTES = 64 * 1024 * 1024
#: Maximum hold time of a pull, whatever the client requests.
MAX_HOLD_MS = 300_000
#: Messages and bytes of one pull of a client that reads a queue from end to end: the read runs in the loop,
#: and the answer must fit into a frame.
MAX_SEQUENTIAL_PULL_MESSAGES = 4_096
MAX_SEQUENTIAL_PULL_BYTES = 8 * 1024 * 1024
#: Cached compiled filters, and their memory: an expression may be as long as a header.
MAX_CACHED_FILTERS = 1_024
MAX_CACHED_FILTER_BYTES = 16 * 1024 * 1024
#: Records that a filter gets at once at first.
FIRST_FILTERED_RECORDS = 16
#: At most; it gets fewer if a call takes longer than MAX_FILTER_CALL_MS.
MAX_FILTERED_RECORDS = 256
MAX_FILTER_CALL_MS = 0.8
#: Bytes of the records that a filter gets at once, besides the first; the time is checked before the next.
FILTERED_BYTES = 64 * 1024
#: Filters that run in threads: calls of one filter at a time.
MAX_FILTER_THREADS = 2
#: Queue units that a pull passes over before it is answered without a message, in multiples of
#: maxFilterMessageSize.
MAX_FILTER_SCANS = 16
#: Units of a consume queue in one answer to QUERY_CONSUME_QUEUE; each takes some hundred bytes of JSON.
MAX_CONSUME_QUEUE_UNITS = 4_096
#: Topics or groups in one creation request: each is checked and the table is written once.
MAX_LISTED_CONFIGS = 4_096
#: Results of one key query (Java: maxMsgsNumBatch).
MAX_QUERY_RESULTS = 64
#: Units of consume queues that are searched for a tag, and how many between two turns of other requests.
MAX_SEARCHED_UNITS = 262_144
SEARCHED_UNITS_PER_TURN = 512
#: Transactions of a producer that have ended, with their outcomes: a broker that missed the end asks for it.
MAX_REMEMBERED_TRANSACTIONS = 10_000
#: Questions of brokers for transactions that wait for the check of a producer (Java: checkRequestHoldMax),
#: and how many are checked at a time. A broker repeats the others.
MAX_WAITING_CHECKS = 2_000
MAX_CHECKS_AT_A_TIME = 8
#: Unanswered calls of one client connection (Java: clientAsyncSemaphoreValue).
MAX_PENDING_CALLS = 65_535
#: Records queued in memory for one slow dispatcher; it gets later ones from the log.
MAX_DISPATCH_QUEUE_BYTES = 16 * 1024 * 1024
