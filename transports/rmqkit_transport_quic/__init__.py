"""QUIC transport: lanes over UDP with TLS 1.3. Needs the extra `quic`."""
