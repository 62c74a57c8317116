"""Registers the broker's topics with name servers (behaviour sheet, C9)."""
