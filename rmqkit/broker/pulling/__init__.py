"""Reads by consumers: filters, held pulls, and what may be read."""
