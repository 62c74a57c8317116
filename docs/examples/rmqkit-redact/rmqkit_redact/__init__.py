"""Blots out secrets in message bodies before they are stored."""
