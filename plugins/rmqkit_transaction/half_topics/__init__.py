"""Half messages in RMQ_SYS_TRANS_HALF_TOPIC, and the numbers of those that have ended in
RMQ_SYS_TRANS_OP_HALF_TOPIC, as brokers keep them since version 4.3 (store-format sheet, section 11.1)."""
