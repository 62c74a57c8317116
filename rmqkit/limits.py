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
#: What a commit buffer may hold for each one of `transientStorePoolSize`. Java's are as large as a log file; but here senders wait for the commit, so
#: the buffer has to bridge no more than what arrives during one write.
COMMIT_BUFFER_BYTES = 16 * 1024 * 1024
#: A connection without any byte in either direction is closed after this (Java: NettyServerConfig).
IDLE_TIMEOUT_MS = 120_000
#: A TLS handshake from its first byte on (Netty's default).
TLS_HANDSHAKE_TIMEOUT_MS = 10_000
#: Bytes that OpenSSL wants to answer by itself (key updates are about 30 each) and that no write has taken along yet.
MAX_TLS_ANSWER_BYTES = 64 * 1024
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
#: Records that wait in memory for one dispatcher that takes its time; what comes after them it is given from the log.
MAX_DISPATCH_QUEUE_BYTES = 16 * 1024 * 1024
#: QUIC connections of one listener. Each keeps a state machine of some 100 KiB in Python, besides what is under way.
MAX_QUIC_CONNECTIONS = 4_096
#: QUIC handshakes under way at one listener: each takes milliseconds of the processor, and strangers can begin them.
MAX_QUIC_HANDSHAKES = 256
#: Lanes a client may have open on one QUIC connection; ours uses three.
MAX_LANES_PER_QUIC_CONNECTION = 8
#: With more QUIC handshakes than that under way a client must prove its address first.
QUIC_RETRY_ABOVE_HANDSHAKES = 32
#: The same with more attempts in a second: what does not become a handshake costs time too.
QUIC_RETRY_ABOVE_ATTEMPTS_PER_S = 200
#: What a peer may send on one lane before it was read: at 20 ms of round trip 25 MB/s, more than Python decrypts.
QUIC_LANE_WINDOW_BYTES = 512 * 1024
#: The same for all lanes of a connection together: it is what a connection may hold of memory, but two lanes that nobody reads must not stop a third.
QUIC_CONNECTION_WINDOW_BYTES = 2 * 1024 * 1024
#: What is put into the state machine of a QUIC connection at a time: it copies what it keeps.
QUIC_SEND_AHEAD_BYTES = 64 * 1024
#: A handshake that takes longer is given up; three round trips and a few lost packets fit.
QUIC_HANDSHAKE_TIMEOUT_MS = 10_000
#: A QUIC connection without lanes is closed after this.
QUIC_EMPTY_TIMEOUT_MS = 10_000
#: At the end of a QUIC connection its last bytes get this long to be acknowledged.
QUIC_LINGER_MS = 2_000
