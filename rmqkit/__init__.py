"""rmqkit: Apache RocketMQ as a kit of Python plugins.

Layers; each imports only those above it:

    speedups                          whether the compiled part runs, and its modules
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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqkit.model.message import Message
    from rmqkit.model.queue import MessageQueue
    from rmqkit.plugin.hookspecs import hookimpl

__version__ = "1.0.0rc1"
__all__ = ["Message", "MessageQueue", "__version__", "hookimpl"]
#: Imported on first use: every run of pytest imports this package for the entry point of its plugin.
_HOMES = {
    "Message": "rmqkit.model.message",
    "MessageQueue": "rmqkit.model.queue",
    "hookimpl": "rmqkit.plugin.hookspecs",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
