"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, with one queue per level, until they are due (Java:
ScheduleMessageService)."""
