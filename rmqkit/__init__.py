"""rmqkit: Apache RocketMQ as a kit of Python plugins.

Layers, each importing only what stands left of it:

    protocol, model, errors, limits   bytes and values; no I/O, no clock
    abc, hookspecs                    what plugins implement and when they are called
    plugins, config                   finding plugins, reading settings
    remoting                          one peer over one byte stream; the serving loop
    broker | client                   neither imports the other
    testing, cli                      contract tests and an in-process broker; the command line

Stores, transports, flush policies, filters, the name server and the rest are plugins in packages of their own.
"""

from rmqkit.hookspecs import hookimpl
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue

__version__ = "0.1.0"
__all__ = ["Message", "MessageQueue", "__version__", "hookimpl"]
