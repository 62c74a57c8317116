"""What plugins and the kernel share and no interface is.

Its modules build on the interfaces of `rmqkit.plugin`:

    address_server    name servers by HTTP
    certificate_files certificates that are read again when they change, for transports
    cold_reads        reads of data that may be on the device alone, without blocking the loop
    connect           connecting by TCP, for transports
    descriptors       file descriptors reserved from connections
    directory_lock    the lock of a store directory
    disk              disk usage as `df` shows it
    document          messages as JSON documents
    held_time         how long a call has held the event loop
    http              answers GET requests for a few pages
    internal_queue    walks the queues of an internal topic with saved progress
    interval          waits for an interval that is a setting
    json_file         RocketMQ's JSON tables on disk
    later             delivers messages at a later time
    log_records       raw bytes of the log, cut into records
    log_state         facts about a broker's log
    options           options of the command line that verbs share
    output            printing for commands
    read_faults       damage that reads of a store meet
    request_kinds     kinds of requests, as Java has thread pools for them
    restored          stored records as messages that can be put again
    self_signed       the certificate of the TLS test mode, for transports
    set_aside         puts aside what a service cannot read or deliver
    settings_changes  changes of settings of a running server
    signing           signs the requests of a client, or of a server to another one
    sockets           accepted sockets of the operating system, for transports
    system_clock      wall-clock time outside tests
    times             texts for points in time and spans
    unsaved           waits for topics and groups that are being created
"""
