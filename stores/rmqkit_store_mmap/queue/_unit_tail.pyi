from rmqkit_store_mmap.queue.unit_tail import pure_tail as tail

__all__ = ["tail"]
