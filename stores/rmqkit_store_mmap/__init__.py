"""The message store in RocketMQ's own disk format: commit log, consume queues, key index, checkpoint (store-format sheet).

The map, from the bytes up:

    disk             the system calls a full or failing disk shows itself in; tests put a faulty one here
    guard            the directory's `abort` file
    checkpoint       the file `checkpoint`: Java's five times and offsets, and the mark of what surely is on the device
    segment          one file of the commit log
    commit_log       the files of the log, the write position, flushing
    commit_buffer    a log whose appends wait in memory and are written together
    units            the 20-byte entries of a consume queue
    queue_trim       cutting the front off a queue, by its files alone
    consume_queue    the units of one queue
    queue_table      all queues of the directory
    queue_numbers    the same without units, for a store whose queues a plugin keeps
    queue_lookup     what reads ask of a queue, and one that a plugin keeps
    index_file       one hash index file
    key_hash         hashes of keys
    key_index        the row of index files, fed in batches
    residency        what of the log is in memory, and bringing in what is not
    reader           reads over queues and log; no state of its own
    trimming         removing the front of the log, and what follows from it
    scan             records as recovery meets them
    redispatch       giving queues and index what recovery found
    recovery         what `open` works out and repairs
    background       the tasks that run beside the appends
    store            MmapStore: append, and everything put together
"""
