"""A message store in one SQLite file."""
