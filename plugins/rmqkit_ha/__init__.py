"""Replication: a master sends its log to slaves (store-format sheet, section 13; Java: DefaultHAService)."""
