"""Broker-side message filters: by tag, by SQL92 expressions over properties, and in Python; and what a broker
keeps of the filters of groups."""
