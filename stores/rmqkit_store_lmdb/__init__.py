"""The message store over LMDB: log, queues and keys in one environment.

The map, from the bytes up:

    layout           the databases, their keys and values
    snapshot         what is put back when the machine died between two flushes
    environment      opening LMDB, writing, flushing, and what its errors mean
    settings         the table [plugins.lmdb]
    queues           the queues in memory
    key_index        keys, the newest in memory
    batch            what appends leave for the writer
    packing          messages into records, units and offsets
    commits          how far the log is appended, written, flushed
    reader           reads in one read transaction
    cold             reads that may have to wait for the device
    trimming         freeing what is old
    opening          what `open` reads and repairs
    store            LmdbStore: everything put together
    readonly         looking into an environment without opening the store
    verify           whether everything in it fits together
    copying          the log for another store, and a store from another one's log
    tools            `rmqkit store`
"""
