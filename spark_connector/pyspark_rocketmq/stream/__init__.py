"""Streaming: starting offsets, offset tracking, rate and lag."""
