"""A load generator for any broker that speaks the RocketMQ remoting protocol; standard library only, shares
no code with rmqkit.

    python -m benchmarks.load send --broker 127.0.0.1:10911 --topic bench --size 1024 --connections 8 \\
        --in-flight 32 --seconds 10
    python -m benchmarks.load send --broker 127.0.0.1:10911 --topic bench --connections 1 --in-flight 1 \\
        --messages 20000
    python -m benchmarks.load send --broker 127.0.0.1:10911 --topic bench --batch 32 --connections 4 \\
        --in-flight 4 --seconds 10
    python -m benchmarks.load pull --namesrv 127.0.0.1:9876 --topic bench --passes 3
    python -m benchmarks.load backlog --namesrv 127.0.0.1:9876 --topic live --read bench --rate 1000 \\
        --quiet-seconds 5 --seconds 60

One thread (and, for `backlog`, a second process that reads). Linux only: epoll. Frames are encoded once and
only the opaque (and the UNIQ_KEY that ends in it) is patched, so a message costs the generator a few
microseconds: `generator_cpu_us_per_message` in the report; `generator_busy` says how much of its core it
used, and a figure near 1 means that the generator, not the server, was the limit. Every response is checked:
its code must be 0 and its opaque must be one that is outstanding. The report is one JSON object on standard
output; the exit status is 1 if anything failed. Sizes are bytes, times seconds unless a name says `ms` or
`us`; MB is 10**6 bytes, of message bodies when sending and of stored records when pulling.

frames: what is sent. asking: one request and its response, routes. tally: what is counted. sending, pulling,
pacing: the three loads.
"""
