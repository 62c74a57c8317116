"""Filters a broker applies to what it hands out: by tag."""
