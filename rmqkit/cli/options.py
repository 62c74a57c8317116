"""Options shared by several verbs."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from rmqkit import config as settings
from rmqkit import log_lines
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.model.subscription import PYTHON, SQL92
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import TLS
from rmqkit.toolkit import output
from rmqkit.toolkit.options import add_config, add_logging

if TYPE_CHECKING:
    from rmqkit.client import Client
    from rmqkit.plugin.loader import Registry

_log = logging.getLogger(__name__)
DEFAULT_NAMESRV = "127.0.0.1:9876"


def address(text: str) -> Address:
    """An argparse type."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def add_settings(parser: ArgumentParser) -> None:
    """`--config`, `--set`, `--log-level`, `--log-format`."""
    add_config(parser)
    add_logging(parser)


def add_client(parser: ArgumentParser) -> None:
    """Options that select the cluster and the transport of a verb's client."""
    parser.add_argument(
        "--namesrv",
        metavar="ADDRESS",
        help=(
            "name servers as host:port, joined by ; or a listener of one broker, such as"
            " unix:///run/rmqkit.sock, tls://host:port, quic://host:port (default: the variable"
            f" NAMESRV_ADDR, else namesrvAddr of the settings, else {DEFAULT_NAMESRV})"
        ),
    )
    how = parser.add_mutually_exclusive_group()
    schemes = "transport for addresses without a scheme: tcp, tls, quic"
    how.add_argument("--transport", metavar="SCHEME", default="", help=schemes)
    tls = "the same as --transport tls"
    how.add_argument("--tls", dest="transport", action="store_const", const=TLS, help=tls)
    within = "namespace of the topics and groups, which are named without it (default: none)"
    parser.add_argument("--namespace", metavar="NAME", default="", help=within)
    authority = "PEM file with the certificates that sign the servers' (tls.client.trustCertPath)"
    parser.add_argument("--ca", metavar="FILE", help=authority)
    add_config(parser)


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_expression(parser: ArgumentParser) -> None:
    """`--tag`, `--sql` and `--filter`."""
    which = parser.add_mutually_exclusive_group()
    tags = "only messages with one of these tags, joined by ||: 'new || paid'"
    which.add_argument("--tag", metavar="EXPRESSION", help=tags)
    condition = (
        "only messages whose properties satisfy the condition: 'amount > 10'; the broker needs SQL92 filters"
    )
    which.add_argument("--sql", metavar="CONDITION", help=condition)
    named = "only messages that pass a filter in Python which is installed on the broker: 'cheap?below=5'"
    which.add_argument("--filter", metavar="NAME", help=named)


def expression_of(arguments: Namespace) -> tuple[str, str | None]:
    """The expression given by `add_expression`, and its type."""
    if arguments.sql is not None:
        return arguments.sql, SQL92
    if arguments.filter is not None:
        return arguments.filter, PYTHON
    return arguments.tag or "*", None


def add_rate(parser: ArgumentParser) -> None:
    """`--rate`."""
    parser.add_argument(
        "--rate", type=positive, metavar="N", help="at most N messages a second (default: no limit)"
    )


def positive(text: str) -> float:
    """An argparse type for a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def client_of(arguments: Namespace) -> Client:
    """A client configured by the options of `add_client`, the environment and the settings. Raises
    ConfigError."""
    # Imported here so that servers start without it.
    from rmqkit.client import Client

    flags = {"namesrvAddr": arguments.namesrv, "tls.client.trustCertPath": arguments.ca}
    config = load_config(arguments, **flags)
    return Client(
        config.name_servers or DEFAULT_NAMESRV,
        config=config,
        transport=arguments.transport,
        namespace=arguments.namespace,
    )


def check_text(arguments: Namespace, *names: str) -> None:
    """Check texts of the command line. Raises ConfigError when one of these arguments is not valid UTF-8,
    which RocketMQ cannot represent."""
    for name in names:
        given = getattr(arguments, name)
        for text in given if isinstance(given, list) else [given]:
            try:
                "".join(text or "").encode()
            except UnicodeEncodeError:
                raise ConfigError(
                    f"{name.replace('_', '-')} {text!r} is not UTF-8 text; only the body of a message may be"
                    " any bytes"
                ) from None


def load_config(arguments: Namespace, **flags: Any) -> Config:
    """The settings, with `--set` and the given keys as command line values. Warnings go to standard error."""
    config = _loaded(arguments, **flags)
    for warning in config.warnings:
        output.error(f"warning: {warning}")
    return config


def _loaded(arguments: Namespace, **flags: Any) -> Config:
    given = {key: value for key, value in flags.items() if value is not None}
    return settings.load(arguments.config, flags=given | dict(arguments.set))


def load_server(
    arguments: Namespace, *, broker: bool, name_server: bool, **flags: Any
) -> tuple[Config, Registry]:
    """The settings and the plugins of a server, checked as at its start. Logging begins, and has the
    warnings. Raises ConfigError."""
    start_logging(arguments)
    # Imported here so that client verbs start without them.
    from rmqkit.broker.run import checks
    from rmqkit.plugin import loader

    config = _loaded(arguments, **flags)
    for text in config.warnings:
        _log.warning("%s", text)
    registry = loader.load(config)
    found = checks.examine(config, registry, broker=broker, name_server=name_server)
    if found.faults:
        raise ConfigError.of(found.faults)
    for warning in found.warnings:
        _log.warning("%s", warning.text)
    return config, registry


def start_logging(arguments: Namespace) -> None:
    """Log as the options of `add_settings` say. Raises ConfigError."""
    log_lines.start_logging(arguments.log_level, arguments.log_format)
