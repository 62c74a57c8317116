"""The types that topics declare are enforced: a message of another type is refused (Java: the proxy's
TopicMessageTypeValidator)."""
