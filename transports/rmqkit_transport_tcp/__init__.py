"""TCP transport."""
