"""Protects a broker from groups that read too slowly."""
