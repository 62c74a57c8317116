"""rmqkit: Apache RocketMQ as a kit of Python plugins.

Layers; each imports only those above it:

    model, protocol, errors, limits   values and bytes; no I/O, no clock
    config                            settings: RocketMQ's keys, where their values come from
    plugin                            all that a plugin needs: hooks, interfaces, the loader of plugins
    remoting                          one peer over one byte stream; the serving loop
    broker | client                   neither imports the other
    testing                           contract tests, and brokers inside a test
    cli, demos, supervisor            the command line, examples to run, several brokers on one machine

Stores, transports, flush policies, filters, the name server and the rest are plugins in packages of their
own, which the layers never import. A plugin sees a broker as `rmqkit.plugin.broker.Broker`.
"""

from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.hookspecs import hookimpl

__version__ = "0.1.0"
__all__ = ["Message", "MessageQueue", "__version__", "hookimpl"]
