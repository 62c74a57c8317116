"""When the log goes to the device: the flush policies ASYNC_FLUSH and SYNC_FLUSH."""
