"""Several brokers on one machine, each in a process of its own, under one parent (`--brokers N`).

    plan         which brokers: names, ports, directories
    supervisor   the parent: starts them, starts the dead ones again, stops them
    process      the parent's end of one broker process
    child        the program of a broker process
    channel      what the two tell each other

The parent holds one end of a socket pair, the child the other as its standard input. The settings travel through it, so they are neither on
the command line nor in the environment, where others could read them; and it closes when the parent dies, however that happens, which tells
the child to stop.
"""
