"""Records who sent, consumed, created, deleted and changed what: structured events, one JSON object each,
written to a rotating file, a topic, or both.

Off unless the setting `hooks` names `audit`.

settings   the table [plugins.audit]
events     the form of events
recorder   the bounded queue between the hooks and the writer
hooks      the hooks that create events for sends, pulls, send-backs and requests
requests   the requests that change something, and their event names
creations  creation and deletion of topics and groups for any reason
targets    the file and the topic
service    writes events outside the message path, and completes them when the broker stops
"""
