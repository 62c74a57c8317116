"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, one queue a level, until they are due (Java: ScheduleMessageService)."""
