"""A message store in memory: the reference for the store contract, and fast for tests."""
