"""The message store over LMDB: log, queues and keys in one environment, with a journal for data that is not
in it yet.

The modules, from the lowest level up:

    layout           the databases, their keys and values
    scanning         searches in rows with many items
    snapshot         the state to restore after a machine failure between two checkpoints
    environment      opening LMDB, writing, flushing, and translation of its errors
    journal          the file to which appends are written immediately
    settings         the table [plugins.lmdb]
    queues           the queues in memory, with their newest units
    padding          gaps in the log as blank records
    tail             the end of the log that is not in LMDB yet
    columns          units, records and keys in bulk
    key_index        keys, the newest in memory
    packing          one append in the form for journal and queues
    batch            the content of one LMDB transaction
    commits          the ends of the log: appended, in LMDB, on the device
    reader           reads in one read transaction
    reading          selection of the messages of a read
    cold             reads that may block on the device
    retention        topics with their own limits
    freeing          deleting from the databases
    trimming         freeing old data
    cutting          cutting the end of log, queues and keys
    opening          loading and repairs on opening, and appends of a replica
    store            LmdbStore, which combines the parts
    readonly         reading an environment without opening the store
    verify           verification of an environment
    copying          copies the log to or from another store
    tools            `rmqkit store`
"""
