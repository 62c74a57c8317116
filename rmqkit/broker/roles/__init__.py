"""The role of a broker, and what each role refuses."""
