"""The commit log: segment files, writing, reading, and the parts of the log that are in memory."""
