"""Reading a store directory beside a running broker, without a lock."""
