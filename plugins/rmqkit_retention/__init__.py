"""Deletes what is old and keeps the disk from filling up (Java: CleanCommitLogService, CleanConsumeQueueService; store-format sheet, section 9).

decide      what to do, from the time, the disk usage, the settings and the files; plain functions
usage       how full a file system is
service     the rounds: look, decide, refuse writes or take them again, delete
processor   the requests by which an administrator asks for it
"""
