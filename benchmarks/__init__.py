"""Benchmarks: a load generator for any RocketMQ broker (load), the servers it is pointed at (peers), and
their comparison (compare)."""
