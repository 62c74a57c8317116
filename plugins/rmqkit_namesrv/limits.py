"""Limits of the name server, each with its reason."""

from __future__ import annotations

#: Entries of a name server's key-value configuration, and their bytes: any client may write, and the file is
#: written as a whole.
MAX_KV_ENTRIES = 65_536
MAX_KV_BYTES = 4 * 1024 * 1024
#: Brokers that may register over one connection, which are those of one process.
MAX_BROKERS_PER_CONNECTION = 64
#: Brokers of a name server. A route contains each broker of a topic.
MAX_BROKERS = 4_096
#: Pairs of topic and broker in a name server's routes; each takes some 200 bytes.
MAX_ROUTE_ENTRIES = 1_048_576
#: Topics in one broker's registration, and the size of its decompressed body.
MAX_REGISTERED_TOPICS = 262_144
MAX_INFLATED_REGISTRATION_BYTES = 64 * 1024 * 1024
#: Bodies of registrations and other changes that a name server has not made yet, besides the first.
MAX_PENDING_CHANGE_BYTES = 64 * 1024 * 1024
