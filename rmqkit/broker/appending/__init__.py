"""The message path into the store: hooks, the append, and the conditions of an acknowledgement."""
