"""Administration of topics, groups and brokers."""
