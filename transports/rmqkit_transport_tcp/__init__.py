"""TCP transport, plain and with TLS."""
