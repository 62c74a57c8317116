"""Writing: the rows of a frame become messages."""
