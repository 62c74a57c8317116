"""Access control: who sends a request, and what that user may do (RocketMQ's ACL 2.0 and 1.0)."""
