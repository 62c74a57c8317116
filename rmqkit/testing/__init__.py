"""PUBLIC: contract tests for plugins, fakes, and an in-process broker for tests."""
