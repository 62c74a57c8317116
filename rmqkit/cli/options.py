"""Options that several verbs share."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from rmqkit import config as settings
from rmqkit.abc import Address
from rmqkit.cli import output
from rmqkit.config import Config
from rmqkit.remoting.dial import TLS

DEFAULT_NAMESRV = "127.0.0.1:9876"


def address(text: str) -> Address:
    """An argparse type."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def key_value(text: str) -> tuple[str, str]:
    """An argparse type for `--set KEY=VALUE`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE, as in flushDiskType=SYNC_FLUSH")
    return key.strip(), value.strip()


def add_settings(parser: ArgumentParser) -> None:
    """`--config`, `--set`, `--log-level`."""
    _add_config(parser)
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="what goes to standard error")


def _add_config(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings: TOML, or Java properties such as broker.conf")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", type=key_value, action="append", default=[], help="one setting, as in broker.conf; repeatable"
    )


def add_client(parser: ArgumentParser) -> None:
    """Where the client of a verb finds the cluster, and how it gets there."""
    parser.add_argument(
        "--namesrv",
        metavar="ADDRESS",
        help="name servers as host:port, joined by ; or a listener of one broker, such as unix:///run/rmqkit.sock, tls://host:port, quic://host:port "
        f"(default: the variable NAMESRV_ADDR, else namesrvAddr of the settings, else {DEFAULT_NAMESRV})",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--transport", metavar="SCHEME", default="", help="how addresses that name no scheme are reached: tcp, tls, quic")
    how.add_argument("--tls", dest="transport", action="store_const", const=TLS, help="the same as --transport tls")
    parser.add_argument("--ca", metavar="FILE", help="PEM file of who signs the servers' certificates (tls.client.trustCertPath)")
    _add_config(parser)


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def load_config(arguments: Namespace, **flags: Any) -> Config:
    """The settings with `--set` and the given keys as the command line's; warnings go to standard error."""
    given = {key: value for key, value in flags.items() if value is not None}
    config = settings.load(arguments.config, flags=given | dict(arguments.set))
    for warning in config.warnings:
        output.error(f"warning: {warning}")
    return config


def start_logging(arguments: Namespace) -> None:
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
