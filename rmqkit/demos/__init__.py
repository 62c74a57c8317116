"""The programs of `make demo` and `make demo-spark`."""
