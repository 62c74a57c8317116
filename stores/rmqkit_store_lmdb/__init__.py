"""The message store over LMDB: log, queues and keys in one environment, and a journal for what is on its way there.

The map, from the bytes up:

    layout           the databases, their keys and values
    scanning         finding one's way in values that hold many things
    snapshot         what is put back when the machine died between two checkpoints
    environment      opening LMDB, writing, syncing, and what its errors mean
    journal          what appends write at once
    settings         the table [plugins.lmdb]
    queues           the queues in memory, with their newest units
    blank            gaps in the log
    tail             the end of the log that LMDB does not have yet
    key_index        keys, the newest in memory
    packing          messages into records, units and offsets
    batch            what goes into LMDB in one transaction
    commits          how far the log is appended, in LMDB, on the device
    reader           reads in one read transaction
    reading          what a read of a queue takes
    cold             reads that may have to wait for the device
    retention        topics with limits of their own
    freeing          deleting from the databases
    trimming         freeing what is old
    opening          what `open` reads and repairs
    store            LmdbStore: everything put together
    readonly         looking into an environment without opening the store
    verify           whether everything in it fits together
    copying          the log for another store, and a store from another one's log
    tools            `rmqkit store`
"""
