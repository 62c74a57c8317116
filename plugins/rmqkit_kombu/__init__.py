"""A transport of Kombu over RocketMQ, for Celery among others: a queue is a topic, what is not acknowledged
is a lease.

    app = Celery(broker="rocketmq://127.0.0.1:9876")
    app.conf.broker_transport = "rmqkit_kombu:Transport"

Needs the extra `celery`.
"""

from rmqkit_kombu.transport import Channel, Transport

__all__ = ["Channel", "Transport"]
