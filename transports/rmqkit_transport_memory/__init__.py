"""In-memory transport."""
