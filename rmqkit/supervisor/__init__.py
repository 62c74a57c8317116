"""Runs several brokers on one machine, each in its own process, under one parent (`--brokers N`).

    plan         names, ports and directories of the brokers
    supervisor   the parent: starts, restarts and stops the brokers
    process      the parent's side of one broker process
    child        the program of a broker process
    channel      messages between parent and child

The parent holds one end of a socket pair; the other end is the child's standard input. The settings travel
through it, so that they appear neither on the command line nor in the environment, where others could read
them. The channel closes whenever the parent dies, which makes the child stop.
"""
