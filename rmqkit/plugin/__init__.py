"""Everything that a plugin needs: the hooks, and a module for each kind of interface.

    hookspecs         every hook, when it is called and what it may do
    store             message stores, and look-ups in place of a store's queues or index
    flush             flush policies
    acks              conditions for acknowledging a message
    positions         positions of the log, and their followers
    dispatcher        followers of the log
    transport         listeners and byte streams of a scheme
    address           addresses, and streams as clients use them
    request           processors, connections and answers
    held              requests that wait for messages
    later             delivery at a later time
    protocols         protocols besides remoting, at shared ports or their own
    queue_code        content of a queue unit besides offset and size
    hooks             hooks around sends, consumption and puts
    request_hooks     hooks around requests, as a server gets them and as they go out
    access            functions and tokens of access control, and what processors ask it
    filter            filters, by expression type
    filter_servers    addresses of the filter server processes of a broker
    allocation        allocation strategies
    broker            a plugin's view of a running broker
    request_broker    a request processor's view of it
    role              role of a broker: master, slave or fenced
    service           work beside the request path of a broker
    metrics           figures of services as metrics
    replication       addresses of the replicas of a broker, and their progress
    name_servers      the name servers of a broker
    server            process roles besides the broker
    command           verbs of the command line
    store_tools       what `rmqkit store` does with a directory
    listen            binds addresses through the transports
    clock             wall-clock time, passed in
    registrations     what all plugins have registered, as plugins see it
    loader            finds plugins and compiles what they register
    hook_runner       calls hooks: errors are logged and counted, slow ones are named

Every interface has a contract test in `rmqkit.testing` that an implementation must pass.
"""
