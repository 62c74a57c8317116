"""Decoding of stored records into Arrow columns."""
