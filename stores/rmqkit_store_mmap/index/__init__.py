"""The key index: index files and look-ups in them."""
