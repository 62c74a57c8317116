"""The metrics of transactions. Those of Apache's brokers have its names; it shows its open half messages by
topic, which are not counted so here."""

from __future__ import annotations

from rmqkit.plugin.metrics import Family

OPEN = Family("rmqkit_open_transactions", "gauge", "Half messages whose transactions are open")
COMMITTED = Family(
    "rocketmq_commit_messages_total", "counter", "Transactions that producers have committed", ("topic",)
)
ROLLED_BACK = Family(
    "rocketmq_rollback_messages_total", "counter", "Transactions that producers have rolled back", ("topic",)
)
ASKED = Family("rmqkit_transaction_checks_total", "counter", "Questions to producers for an outcome")
UNHEARD = Family(
    "rmqkit_transaction_checks_unheard_total", "counter", "Questions for which no producer was connected"
)
GIVEN_UP = Family(
    "rmqkit_transactions_given_up_total", "counter", "Half messages whose outcome is not asked for any more"
)
