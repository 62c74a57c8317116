"""The filter server as a process role (Java: FiltersrvController)."""

from __future__ import annotations

import logging

import trio

from rmqkit.config import Config
from rmqkit.errors import ConfigError, RmqError
from rmqkit.model.subscription import PYTHON
from rmqkit.plugin.broker import Pool
from rmqkit.plugin.registrations import Registrations
from rmqkit.plugin.server import Listen, Server, ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import RegisterFilterServerRequestHeader
from rmqkit_filter_server.classes import FilterClasses
from rmqkit_filter_server.pulls import FilteredPulls
from rmqkit_filter_server.settings import PLUGIN, options
from rmqkit_filter_server.web_assembly import FilterModules

_log = logging.getLogger(__name__)
REGISTER_INTERVAL_MS = 10_000
REGISTER_TIMEOUT_MS = 3_000
#: Time between two attempts while the broker does not answer.
RETRY_MS = 1_000
_DRAIN_TIMEOUT_MS = 3_000


class FilterServerRole(Server):
    """Filters messages of one broker for consumers, with the filters in Python that are installed here, and
    with modules that consumers send if the settings allow it."""

    name = PLUGIN

    async def run(
        self,
        config: Config,
        registry: Registrations,
        listen: Listen,
        task_status: trio.TaskStatus[ServerHandle],
    ) -> None:
        """Run a filter server for the broker of the settings. Raises ConfigError for an address that cannot
        be bound, and when the broker refuses the registration, MissingExtra for `webAssembly` without its
        package, PluginError for an unknown scheme. When cancelled, stops accepting, answers requests in
        flight (at most 3 s), and closes everything; held pulls are dropped."""
        chosen = options(config)
        filters = registry.chosen("filter_servers", PYTHON)
        modules = FilterModules(chosen.module_limits) if chosen.web_assembly else None
        classes = FilterClasses(filters, modules)
        async with listen.pool(config) as pool, trio.open_nursery() as pulls:
            serving = await listen(
                {
                    RequestCode.PULL_MESSAGE: FilteredPulls(pool, chosen.broker, classes, pulls),
                    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: classes,
                }
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(serving.run, _DRAIN_TIMEOUT_MS)
                own = _advertised(serving.addresses[0], chosen.advertised)
                nursery.start_soon(_register, pool, chosen.broker, own)
                _log.info("filter server of %s listens on %s", chosen.broker, serving.addresses[0])
                task_status.started(ServerHandle(serving.addresses))


def _advertised(address: Address, host: str) -> str:
    return str(Address("tcp", host or address.host, address.port))


async def _register(pool: Pool, broker: str, own: str) -> None:
    """Register with the broker until cancelled. Raises ConfigError when it refuses."""
    command_header = RegisterFilterServerRequestHeader(filter_server_addr=own)
    registered = False
    while True:
        command = request(RequestCode.REGISTER_FILTER_SERVER, command_header)
        try:
            response = await pool.call(broker, command, REGISTER_TIMEOUT_MS)
        except RmqError as error:
            _log.warning("cannot register with the broker %s: %s", broker, error)
            registered = False
            await trio.sleep(RETRY_MS / 1000)
            continue
        if response.code != ResponseCode.SUCCESS:
            raise ConfigError(
                f"the broker {broker} refuses the filter server {own}: {response.remark} (code"
                f" {response.code})"
            )
        if not registered:
            _log.info("registered with the broker %s as %s", broker, own)
        registered = True
        await trio.sleep(REGISTER_INTERVAL_MS / 1000)
