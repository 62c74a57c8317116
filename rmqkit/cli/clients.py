"""The client that verbs use."""

from __future__ import annotations

import os
from argparse import Namespace

from rmqkit.cli.options import DEFAULT_NAMESRV
from rmqkit.client import Client


def client_of(arguments: Namespace) -> Client:
    """A client of the name servers that `--namesrv`, NAMESRV_ADDR or the default name."""
    return Client(arguments.namesrv or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV)
