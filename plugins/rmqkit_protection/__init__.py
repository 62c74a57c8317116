"""Protects a broker from groups that read too slowly, and from more requests than it can process."""
