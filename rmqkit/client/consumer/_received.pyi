from rmqkit.client.consumer.received import no_ordinary_messages as ordinary_messages

__all__ = ["ordinary_messages"]
