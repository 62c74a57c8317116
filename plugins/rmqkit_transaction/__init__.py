"""Transactional messages: a broker keeps a producer's half message until the producer commits it or rolls it
back, and asks producers that do neither (Java: TransactionalMessageService)."""
