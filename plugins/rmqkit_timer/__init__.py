"""Timers: messages wait in rmq_sys_wheel_timer until a time of the sender's own (Java: TimerMessageStore)."""
