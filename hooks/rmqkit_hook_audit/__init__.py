"""Writes down who sent, consumed, created, deleted and changed what: structured events, one JSON object each, to a rotating file, a topic, or both.

Off unless the setting `hooks` names `audit`.

settings   the table [plugins.audit]
events     what an event looks like
recorder   the bounded queue between the hooks and the writer
watching   the hooks that make events of sends, pulls, send-backs and requests
requests   which requests change something, and how they are called
creations  topics and groups that come into being or go, whoever asked for it
targets    the file and the topic
service    writes off the loop, and to the end when the broker stops
"""
