"""Tells name servers which topics this broker has (behaviour sheet, C9)."""
