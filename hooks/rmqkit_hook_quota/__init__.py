"""Quotas: how many messages and bytes a second topics and clients send, and groups get."""
