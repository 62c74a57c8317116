"""Values: messages, queues, topics, groups, routes, and the names and bits they use. Frozen unless a class says otherwise; no I/O, no clock."""
