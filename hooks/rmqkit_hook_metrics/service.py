"""The port that serves the metrics."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus

import trio

from rmqkit.errors import ConfigError, how_to_install
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.toolkit.http import Page, Responder
from rmqkit_hook_metrics.counting import Counts
from rmqkit_hook_metrics.hooks import Counting, Deliveries
from rmqkit_hook_metrics.scrape import Scrape, common_labels
from rmqkit_hook_metrics.settings import ExporterSettings, MetricsSettings, parse_labels
from rmqkit_hook_metrics.text import CONTENT_TYPE, Writer

_log = logging.getLogger(__name__)
_LINE = "text/plain; charset=utf-8"


class MetricsService(Service):
    """GET /metrics, GET /healthz, which answers while the broker's event loop runs, and GET /readyz, whose
    status is 503 while the broker is fenced. `address` is set when it listens: the service starts behind the
    others, after the first registration."""

    name = "metrics"

    def __init__(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self._counts = Counts()
        self.address: tuple[str, int] | None = None

    def begin(self, broker: Broker) -> None:
        """Count from now on, before the first connection is served."""
        self._counts = Counts()
        parse_labels(broker.config.owned(ExporterSettings).metrics_label)
        registry = broker.registry
        for hook in [*registry.send_message_hooks, *registry.consume_message_hooks, *registry.rpc_hooks]:
            if isinstance(hook, Counting):
                hook.begin(self._counts)
        broker.stats.on_delivery.append(Deliveries(self._counts))

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        settings, labels = self._settings, common_labels(broker.config)
        scrape = Scrape(broker, self._counts, settings, Writer(labels, settings.unit_suffix))
        push = self._push(broker, labels) if settings.otlp_endpoint else None
        responder = Responder(
            self.name,
            {
                "/metrics": Page(CONTENT_TYPE, scrape.parts),
                "/healthz": Page(_LINE, _healthy),
                "/readyz": Page(_LINE, partial(_role, broker), partial(_ready_status, broker)),
            },
        )
        exporter = broker.config.owned(ExporterSettings)
        listeners = await _listen(exporter.metrics_prom_exporter_host, exporter.metrics_prom_exporter_port)
        host, port = listeners[0].socket.getsockname()[:2]
        self.address = (host, port)
        _log.info("metrics at http://%s:%s/metrics", host, port)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_listeners, responder.serve, listeners))
            if push is not None:
                nursery.start_soon(push)
            task_status.started()

    def _push(self, broker: Broker, labels: Mapping[str, str]) -> Callable[[], Awaitable[None]]:
        """What sends the figures to a collector. Raises ConfigError without the extra."""
        try:
            from rmqkit_hook_metrics.otlp import OtlpForm, OtlpPush
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugins.metrics.otlpEndpoint needs an extra ({error}): {how_to_install('otlp')}"
            ) from error
        settings = self._settings
        push = OtlpPush(settings.otlp_endpoint, settings.otlp_interval_ms, labels)
        return partial(push.run, Scrape(broker, self._counts, settings, OtlpForm(broker.clock)))


async def _healthy() -> AsyncGenerator[str]:
    yield "ok\n"


async def _role(broker: Broker) -> AsyncGenerator[str]:
    yield f"{broker.role.current.value}\n"


def _ready_status(broker: Broker) -> int:
    return HTTPStatus.SERVICE_UNAVAILABLE if broker.role.current is Role.FENCED else HTTPStatus.OK


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    """Plain TCP, without the transport `tcp`, which takes TLS where the broker's ports do: scrapers ask
    without it, as they ask Apache's exporter. Raises ConfigError."""
    try:
        return list(await trio.open_tcp_listeners(port, host=host))
    except OSError as error:
        taken = (
            "; another program, or another broker of this machine, has it: set metricsPromExporterPort"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise ConfigError(
            f"metrics cannot listen on {host}:{port}: {error.strerror or error}{taken}"
        ) from error
