"""Pop consumption: messages are leased to clients one by one, whatever queue they are in (store-format sheet,
section 12; Java: PopMessageProcessor, AckMessageProcessor, PopReviveService)."""
