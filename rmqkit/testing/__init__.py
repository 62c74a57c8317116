"""PUBLIC: contract tests for what plugins implement, fakes, and an in-process broker for tests."""
