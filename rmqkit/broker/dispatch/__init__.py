"""Dispatchers: selection, progress, and replay of entries that they missed."""
