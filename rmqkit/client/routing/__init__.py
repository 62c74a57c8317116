"""Name servers, and the routes to the queues of a topic."""
