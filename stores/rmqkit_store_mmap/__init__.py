"""The message store in RocketMQ's own disk format: commit log, consume queues, key index, checkpoint
(store-format sheet).

The modules, from the lowest level up:

    disk             the system calls that may fail or block on the device; tests replace them
    abort_file       the directory's `abort` file
    deletions        the file `deletedTopics`: the deletions of topics and queues
    checkpoint       the file `checkpoint`: Java's five times and offsets, and the mark of what is on the
                     device
    segment          one file of the commit log
    commit_log       the files of the log, the write position, flushing
    commit_buffer    a log whose appends are buffered in memory and written together
    units            the 20-byte entries of a consume queue
    queue_trim       the front part of a queue without records, from its files
    extension        the extension of one queue, with tags codes and bit maps
    consume_queue    the units of one queue
    queue_table      all queues of the directory
    queue_numbers    all queues without units, for a store whose queues a plugin keeps
    queue_lookup     interface of a queue for reads, and adapter for queues that a plugin keeps
    index_file       one hash index file
    key_index        the sequence of index files, filled in batches
    index_gaps       finds lost index files
    mincore          which pages of a mapping are in memory
    cold             reads data that is only on the device into memory
    residency        which parts of the log are in memory
    read_faults      places where reads found no record
    reader           reads over queues and log, without state
    trimming         removes the front of the log with its queue and index files
    scan             the records of the log for recovery
    mending          finds good records after damage, and repairs the damage
    redispatch       adds the records that recovery found to queues and index
    recovery         recovery when the store is opened
    background       the background tasks
    appending        the hot path of an append
    replication      raw appends of another broker's log, and cutting the log
    store            MmapStore, which combines the parts

Without opening a store:

    data_files       sequences of files on disk
    log_reader       the log of a directory
    queue_reader     one of its queues
    readonly         log and queues, for tools and for programs that read files directly
    tools            `rmqkit store`
    plugin           registers the store and its tools
"""
