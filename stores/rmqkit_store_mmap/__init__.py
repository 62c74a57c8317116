"""The message store in RocketMQ's own disk format: commit log, consume queues, key index, checkpoint (store-format sheet).

The map, from the bytes up:

    disk             the system calls a full or failing disk shows itself in; tests put a faulty one here
    guard            the directory's `lock` and `abort` files
    checkpoint       the five times and offsets of the file `checkpoint`
    segment          one file of the commit log
    commit_log       the files of the log, the write position, flushing
    consume_queue    the 20-byte units of one queue
    queue_table      all queues of the directory
    index_file       one hash index file
    key_index        the row of index files, fed in batches
    reader           reads over queues and log; no state of its own
    recovery         what `open` works out and repairs
    background       the tasks that run beside the appends
    store            MmapStore: append, and everything put together
"""
