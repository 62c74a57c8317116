"""Half messages in the log itself, with a table of their states, as brokers before version 3 kept them
(store-format sheet, section 11.2; Java: TransactionStateService)."""
