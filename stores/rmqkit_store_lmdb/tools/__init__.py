"""`rmqkit store` for directories of this store."""
