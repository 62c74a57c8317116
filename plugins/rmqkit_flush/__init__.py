"""When the log goes to the device: the flush policies ASYNC_FLUSH, the same with a commit buffer, and SYNC_FLUSH."""
