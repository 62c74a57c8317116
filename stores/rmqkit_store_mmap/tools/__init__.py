"""`rmqkit store` for this format: what a store directory holds, whether it is sound, its messages as text, and copies. Only a copy writes anything.

verb          the actions and their exit codes
survey        `inspect`: the files and what they say of themselves
report        `inspect` and `verify` for people and as JSON
verify        `verify`: what the walk meets is held against queues and index
log_records   the records of one file of the log, each proven
queue_check   a queue against the records of the walk
index_check   the index files against the records of the walk
damage        the first bad place
export        `export`: messages as lines of JSON
copying       `copy`: the log for another store, and a store from another one's log
"""
