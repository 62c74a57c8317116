"""The name server: keeps in memory which brokers are alive and which topics they have, and tells clients (behaviour sheet, section D).

tables                 what is known; plain state, time passed in
kv                     the key-value configuration and its file
registration_body      what a broker sends when it registers
broker_requests, route_requests, settings_requests
                       request handlers over that state
processor              request code -> handler
server                 listeners, expiry, closed connections
"""
