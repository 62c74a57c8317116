"""Members of consumer groups (Java: DefaultMQPushConsumer, DefaultLitePullConsumer).

    process_queue   messages of one queue, from their pull until they are finished; the offset to commit
    flow_control    limits of what is pulled ahead
    retry_schedule  when and where a failed message is delivered again
    rebalance       which queues a member gains and loses
    statistics      how fast topics are pulled and consumed
    options         settings, and the expressions of a subscription
    offset_store    offsets at the broker, or in a file of a broadcast consumer
    queue_locker    locks of ordered queues
    send_back       the way of a failed message to the retry or dead-letter topic
    lasting         which errors time does not cure
    bad_records     what becomes of records that cannot be decoded
    assigned        one assigned queue with its pulls and handlers
    distributor     hands messages of the assigned queues to handlers
    delivery        one message, or a batch, in the hands of the application
    batches         gathers batches
    settling        what becomes of a message after its handler
    engine          the loops: rebalance, pulls, commits, lock renewals
    breaker         ends a consumer whose handlers keep failing
    source          what a message in hand belongs to: an assigned queue, or its own lease
    member          joining and leaving a group, and what brokers ask
    group_consumer  members that keep a share of the queues
    handler_consumer  a function, an iteration, or batches, for applications with handlers
    push_consumer   members with queues and handlers
    lease           the lease of one message
    popping         the requests of leases
    leases          renews leases and sends acknowledgements
    lease_outcomes  what becomes of a leased message after its handler
    pop_consumer    members with leases, with handlers or by hand
    lite_pull       what applications use that ask for messages

The first five are plain values without I/O and time.
"""
