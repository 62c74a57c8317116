"""Broker-side message filters: by tag, and by SQL92 expressions over properties."""
