"""Broker-side message filters: by tag."""
