"""Values: messages, queues, topics, groups and routes, their names and bits. Frozen unless a class says
otherwise; no I/O, no clock."""
