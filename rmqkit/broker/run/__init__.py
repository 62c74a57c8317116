"""Assembly, start and stop of a broker, and its settings while it runs."""
