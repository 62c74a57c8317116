"""Lite topics (wire-protocol sheet, section 3.6; RIP-83): many small topics within one, each with a queue of
its own, which clients subscribe one by one and pop in order."""
