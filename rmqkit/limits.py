"""Every cap in one file, each with its reason. Units are in the names."""

from __future__ import annotations

#: A frame including its own 4-byte length prefix (Java: NettyDecoder, frameMaxLength). Larger: the connection is closed.
MAX_FRAME_BYTES = 16 * 1024 * 1024
#: A frame header. Java allows 0xFFFFFF; no real header passes a few KiB plus 32 767 bytes of properties (JSON escapes make them six times that).
MAX_HEADER_BYTES = 1024 * 1024
#: Nesting of JSON in headers and bodies; real bodies nest four or five deep. Guards the parser's stack.
MAX_JSON_DEPTH = 64
#: JSON that only the tolerant parser reads is parsed in Python, some microseconds an element; real bodies of that kind are small tables.
MAX_LOOSE_JSON_BYTES = 2 * 1024 * 1024
#: Properties of one message: their length is a signed 16-bit number on disk.
MAX_PROPERTIES_BYTES = 32_767
#: A topic name (Java: Validators, TopicValidator); retry and dead-letter topics may be longer.
MAX_TOPIC_LENGTH = 127
MAX_DERIVED_TOPIC_LENGTH = 255
#: A group name (Java: Validators.CHARACTER_MAX_LENGTH of 5.x).
MAX_GROUP_LENGTH = 120
#: Messages of one batch request: the smallest takes 22 bytes, so a 4 MiB body could otherwise claim 190 000. The answer names each by up to 57
#: characters and must fit into a header.
MAX_BATCH_MESSAGES = 16_384
#: Queues of one topic; the offset table and the consume queues grow with it.
MAX_QUEUES_PER_TOPIC = 4_096
#: Requests of one connection that may be unanswered before the server stops reading it. Held pulls give their place back.
MAX_IN_FLIGHT_PER_CONNECTION = 4_096
#: Held pulls of one connection: a client holds one per queue and group.
MAX_HELD_PULLS_PER_CONNECTION = 16_384
#: Bytes waiting to be written to one connection before the server stops reading it.
MAX_UNSENT_BYTES_PER_CONNECTION = 16 * 1024 * 1024
#: What one read takes from a socket; several requests arrive together under load.
READ_CHUNK_BYTES = 256 * 1024
#: A connection without any byte in either direction is closed after this (Java: NettyServerConfig).
IDLE_TIMEOUT_MS = 120_000
#: Connections one listener accepts at a time.
MAX_CONNECTIONS = 16_384
#: Topics and groups a broker creates by itself on behalf of clients; a hostile client could otherwise fill the disk with names.
MAX_AUTO_CREATED_TOPICS = 65_536
MAX_AUTO_CREATED_GROUPS = 65_536
#: Topics a name server takes from one broker's registration, and the size of its inflated body.
MAX_REGISTERED_TOPICS = 262_144
MAX_INFLATED_REGISTRATION_BYTES = 64 * 1024 * 1024
#: A decompressed message body a client accepts: the largest body is 4 MiB by default, servers may allow more.
MAX_INFLATED_BODY_BYTES = 64 * 1024 * 1024
#: Subscriptions and groups in one heartbeat.
MAX_HEARTBEAT_ENTRIES = 10_000
#: A longest hold of a pull, whatever the client asks.
MAX_HOLD_MS = 300_000
#: Key queries: results of one answer (Java: maxMsgsNumBatch).
MAX_QUERY_RESULTS = 64
#: Calls of one client connection that may wait for an answer (Java: clientAsyncSemaphoreValue).
MAX_PENDING_CALLS = 65_535
