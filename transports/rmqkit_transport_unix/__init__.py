"""Unix socket transport."""
