"""Flush policies, which decide when the log is written to the device: ASYNC_FLUSH, the same with a commit
buffer, and SYNC_FLUSH."""
