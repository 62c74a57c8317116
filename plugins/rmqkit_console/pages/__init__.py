"""The pages, each a module that makes the values of its page: plain values that templates and JSON show."""

from __future__ import annotations

from typing import Final

from rmqkit_console.console import Page
from rmqkit_console.pages import audit, backlogs, dead_letters, groups, messages, overview, settings, topics

ALL: Final = (
    Page("/", "Overview", "overview.html", overview.overview),
    Page("/broker", "Broker", "broker.html", overview.broker, is_main=False),
    Page("/topics", "Topics", "topics.html", topics.topics),
    Page("/topic", "Topic", "topic.html", topics.topic, is_main=False),
    Page("/groups", "Groups", "groups.html", groups.groups),
    Page("/group", "Group", "group.html", groups.group, is_main=False),
    Page("/messages", "Messages", "messages.html", messages.messages),
    Page("/message", "Message", "message.html", messages.message, is_main=False),
    Page("/dead-letters", "Dead letters", "dead_letters.html", dead_letters.dead_letters),
    Page("/resends", "Sent again", "resends.html", dead_letters.resends, is_main=False),
    Page("/backlogs", "Backlogs", "backlogs.html", backlogs.backlogs),
    Page("/settings", "Settings", "settings.html", settings.settings),
    Page("/audit", "Audit", "audit.html", audit.audit),
)
