"""Sans-IO protocol: bytes in, commands and records out. No trio, no clock, no logging in this package
(wire-protocol sheet)."""
