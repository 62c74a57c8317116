"""`rmqkit store` for this format: shows the content of a store directory, verifies it, exports its messages
and copies it. Only a copy writes files.

verb          the actions and their exit codes
survey        `inspect`: the files and the content of their headers
report        output of `inspect` and `verify` as text and as JSON
verify        `verify`: compares the log with queues and index
log_records   the verified records of one file of the log
queue_check   compares a queue with its records
index_check   compares the index files with the records of the log
damage        the exception for the first bad place
export        `export`: messages as lines of JSON
copying       `copy`: copies the log to or from another store
"""
