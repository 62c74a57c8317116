"""The message store in RocketMQ's own disk format: commit log, consume queues, key index, checkpoint
(store-format sheet).

The folders and their modules, from the lowest level up:

    log
        disk         the system calls that may fail or block on the device; tests replace them
        segment      one file of the commit log
        commit_log   the files of the log, the write position, flushing
        commit_buffer  a log whose appends are buffered in memory and written together
        mincore      which pages of a mapping are in memory
        residency    which parts of the log are in memory
        read_faults  places where reads found no record
        scan         the records of the log for recovery
        log_reader   the log of a directory, without opening a store
    queue
        units        the 20-byte entries of a consume queue
        unit_tail    where the units of a queue file end; compiled: _unit_tail
        queue_trim   the front part of a queue without records, from its files
        extension    the extension of one queue, with tags codes and bit maps
        consume_queue  the units of one queue
        queue_table  all queues of the directory
        queue_numbers  all queues without units, for a store whose queues a plugin keeps
        queue_lookup  interface of a queue for reads, and adapter for queues that a plugin keeps
        deletions    the file `deletedTopics`: the deletions of topics and queues
        queue_reader  one queue of a directory, without opening a store
    index
        entries      entries that are not yet in a file; compiled: _entries
        index_file   one hash index file
        key_index    the sequence of index files, filled in batches
        index_gaps   finds lost index files
    open
        abort_file   the directory's `abort` file
        checkpoint   the file `checkpoint`: Java's five times and offsets, and the mark of what is on the
                     device
        trimming     removes the front of the log with its queue and index files
        mending      finds good records after damage, and repairs the damage
        redispatch   adds the records that recovery found to queues and index
        recovery     recovery when the store is opened
        background   the background tasks
    cold             reads data that is only on the device into memory
    unit_scan        the units of a queue that a pull may deliver, and their records
    reader           reads over queues and log, without state
    received         checks records of another broker's log, and gathers their units; compiled: _received
    replication      raw appends of another broker's log, and cutting the log
    settings         the settings of the store
    appending        the hot path of an append
    store            MmapStore, which combines the parts
    readonly
        data_files   sequences of files on disk
        readonly     log and queues, for tools and for programs that read files directly
    tools            `rmqkit store`
    plugin           registers the store and its tools
"""
