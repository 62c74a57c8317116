"""The verb `rmqkit store`: what a store directory holds, whether it is sound, and its messages as text. Nothing here locks or writes anything.

verb          options, choice of action, exit codes
survey        `inspect`: the files and what they say of themselves
report        `inspect` and `verify` for people and as JSON
verify        `verify`: what the walk meets is held against queues and index
log_records   the records of one file of the log, each proven
queue_check   a queue against the records of the walk
index_check   the index files against the records of the walk
damage        the first bad place
export        `export`: messages as lines of JSON
"""
