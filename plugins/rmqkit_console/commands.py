"""`rmqkit console` serves pages that show a cluster in a browser, of rmqkit's brokers or of Apache's, until
SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable

import trio

from rmqkit import config as settings
from rmqkit import log_lines
from rmqkit.config import Config
from rmqkit.errors import ConfigError, MissingExtra
from rmqkit.plugin.address import Address
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import options, output
from rmqkit_console.settings import (
    DEFAULT_LISTEN,
    PASSWORD_VARIABLE,
    PLUGIN,
    ConsoleSettings,
    address_of,
    has_libraries,
    login_of,
)

#: Returns when the console shall stop; it is started before the ready line, and from then on notices it.
Until = Callable[[trio.TaskStatus[None]], Awaitable[None]]


def run(arguments: Namespace, until: Until) -> int:
    """Serve the console. Raises MissingExtra, ConfigError without a name server, for wrong settings and for
    an address that cannot be bound."""
    if not has_libraries():
        raise MissingExtra("the console", PLUGIN)
    log_lines.start_logging(arguments.log_level, arguments.log_format)
    config = _config(arguments)
    if not config.name_servers:
        raise ConfigError("a console needs the name servers of its cluster: add --namesrv HOST:PORT")
    chosen = config.plugin_settings(PLUGIN, ConsoleSettings)
    address_of(chosen)
    login_of(chosen)
    trio.run(_serve, config, chosen, arguments, until)
    return 0


async def _serve(config: Config, chosen: ConsoleSettings, arguments: Namespace, until: Until) -> None:
    # Imported here so that other verbs start without the client and the web libraries.
    from rmqkit_console.clients import Clients
    from rmqkit_console.serving import serve

    clients = Clients(
        namesrv=config.namesrv_addr,
        config=config,
        transport=arguments.transport,
        namespace=arguments.namespace,
    )
    async with trio.open_nursery() as nursery:
        asked = trio.Event()

        async def watch(task_status: trio.TaskStatus[None]) -> None:
            await until(task_status)
            asked.set()

        await nursery.start(watch)
        address: Address = await nursery.start(serve, clients, chosen)
        output.line(f"rmqkit ready console=http://{address}/ namesrv={config.namesrv_addr}")
        await asked.wait()
        nursery.cancel_scope.cancel()


async def _signal(task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            return


def _config(arguments: Namespace) -> Config:
    flags = {
        "namesrvAddr": arguments.namesrv,
        "tls.client.trustCertPath": arguments.ca,
        f"plugins.{PLUGIN}.listen": arguments.listen,
        f"plugins.{PLUGIN}.user": arguments.user,
        f"plugins.{PLUGIN}.clusterLogin": arguments.cluster_login or None,
        f"plugins.{PLUGIN}.passwordFile": arguments.password_file,
        f"plugins.{PLUGIN}.hosts": arguments.host,
        f"plugins.{PLUGIN}.allowWrites": arguments.allow_writes or None,
        f"plugins.{PLUGIN}.hideBodies": arguments.hide_bodies or None,
        f"plugins.{PLUGIN}.auditFile": arguments.audit_file,
        f"plugins.{PLUGIN}.auditTopic": arguments.audit_topic,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    return settings.load(arguments.config, flags=given | dict(arguments.set))


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--namesrv", metavar="HOST:PORT", help="the cluster's name servers, joined by ; (default namesrvAddr)"
    )
    listen = f"where to listen (default {DEFAULT_LISTEN}); beyond loopback only with a login"
    add("--listen", metavar="HOST:PORT", help=listen)
    user = (
        f"ask for this user and a password, which is in --password-file or the variable {PASSWORD_VARIABLE}"
    )
    add("--user", metavar="NAME", help=user)
    keys = "everybody logs in with access key and secret key of a user of the cluster's access control"
    add("--cluster-login", action="store_true", help=keys)
    add("--password-file", metavar="FILE", help="file whose first line is the password")
    hosts = "a name under which browsers reach the console, besides localhost and addresses; repeatable"
    add("--host", metavar="NAME", action="append", help=hosts)
    add("--allow-writes", action="store_true", help="let dead letters be sent again; else pages only read")
    add("--hide-bodies", action="store_true", help="do not show the bodies of messages")
    add("--audit-file", metavar="FILE", help="show the audit of a broker on this machine")
    add("--audit-topic", metavar="NAME", help="show the audit that brokers write to this topic")
    add("--namespace", metavar="NAME", default="", help="namespace of the topics and groups (default: none)")
    how = parser.add_mutually_exclusive_group()
    schemes = "transport to the cluster for addresses without a scheme: tcp, tls, quic"
    how.add_argument("--transport", metavar="SCHEME", default="", help=schemes)
    tls = "the same as --transport tls"
    how.add_argument("--tls", dest="transport", action="store_const", const="tls", help=tls)
    authority = "PEM file with the certificates that sign the servers' (tls.client.trustCertPath)"
    add("--ca", metavar="FILE", help=authority)
    options.add_config(parser)
    options.add_logging(parser)


CONSOLE = Verb(
    "serve pages that show a cluster in a browser", _arguments, lambda arguments: run(arguments, _signal)
)
__all__ = ["CONSOLE", "run"]
