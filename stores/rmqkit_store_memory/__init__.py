"""A message store that keeps everything in memory: the oracle of the store contract, and quick for tests."""
