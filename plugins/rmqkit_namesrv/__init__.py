"""The name server: keeps the live brokers and their topics in memory and serves routes to clients (behaviour
sheet, section D).

    tables               registered data; plain state, time passed in
    kv                   the key-value configuration and its file
    changes              changes of the tables, in order and in slices
    registration_body    the body of a broker's registration
    broker_requests, route_requests, settings_requests
                         request handlers over that state
    processor            request code -> handler
    server               listeners, expiry, closed connections
"""
