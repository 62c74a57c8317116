"""Consume queues: units in segment files, and the numbers of every queue."""
