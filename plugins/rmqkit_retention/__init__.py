"""Deletes expired messages and keeps the disk from filling up (Java: CleanCommitLogService,
CleanConsumeQueueService; store-format sheet, section 9).

decide      decisions from time, disk usage, settings and files; plain functions
usage       disk usage of a file system
service     the rounds: inspect, decide, refuse or permit writes, delete
processor   the requests for cleaning by an administrator
"""
