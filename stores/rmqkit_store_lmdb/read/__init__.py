"""Reading: queues, keys, and fetching of cold data from the device."""
