"""The client that verbs use."""

from __future__ import annotations

from argparse import Namespace

from rmqkit.cli import options
from rmqkit.client import Client


def client_of(arguments: Namespace) -> Client:
    """A client as the options of `options.add_client`, the environment and the settings say. Raises ConfigError."""
    config = options.load_config(arguments, **{"namesrvAddr": arguments.namesrv, "tls.client.trustCertPath": arguments.ca})
    return Client(config.name_servers or options.DEFAULT_NAMESRV, config=config, transport=arguments.transport)
