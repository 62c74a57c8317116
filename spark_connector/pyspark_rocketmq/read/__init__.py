"""Batch reading: planned in the driver, executed in the workers."""
