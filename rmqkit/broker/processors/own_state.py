"""The broker's own settings and counters (Java: AdminBrokerProcessor; wire-protocol sheet, section 3.7).

Unlike the other processors this one takes the kernel's parts and no port: a changed setting is put into each
of them, and the figures are counters inside them that nobody else may rely on."""

from __future__ import annotations

from rmqkit import config as settings
from rmqkit.broker.processors import runtime_info
from rmqkit.broker.processors.by_code import ProcessorByCode
from rmqkit.broker.run.context import BrokerContext
from rmqkit.broker.run.live_settings import live_settings
from rmqkit.broker.stats_items import DAY, HOUR, MINUTE, Change
from rmqkit.errors import RequestRefused
from rmqkit.model.text import text_of
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers import ViewBrokerStatsDataRequestHeader


class OwnStateProcessor(ProcessorByCode):
    """Shows and changes settings, and shows figures."""

    _broker: BrokerContext

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._live_settings = live_settings(broker)
        self._handlers = {
            RequestCode.GET_BROKER_CONFIG: self._broker_config,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats_data,
        }
        self._tasks = {
            RequestCode.UPDATE_BROKER_CONFIG: self._update_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime_info,
        }

    def _broker_config(self, request: Command) -> Command:
        text = settings.properties_text(self._broker.config, self._broker.registry.settings.values())
        response = answer(request, body=text.encode())
        response.ext = {"version": loose_json.dumps(self._broker.topics.data_version).decode()}
        return response

    async def _update_config(self, request: Command) -> Command:
        texts = settings.parse_properties(text_of(request.body))
        return answer(request, remark=await self._live_settings.update(texts))

    async def _runtime_info(self, request: Command) -> Command:
        return json_answer(request, {"table": await runtime_info.collect(self._broker)})

    def _stats_data(self, request: Command) -> Command:
        """Java: BrokerStatsData."""
        header = request.header(ViewBrokerStatsDataRequestHeader)
        self._broker.stats.advance(self._broker.clock.now_ms())
        item = self._broker.stats.view(
            header.stats_name, header.stats_key, self._broker.config.broker_cluster_name
        )
        if item is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        of_bytes = header.stats_name.endswith("_SIZE")
        spans = {"statsMinute": MINUTE, "statsHour": HOUR, "statsDay": DAY}
        return json_answer(
            request, {key: _snapshot(item.change(span), of_bytes) for key, span in spans.items()}
        )


def _snapshot(change: Change, of_bytes: bool) -> dict[str, object]:
    """Java: BrokerStatsItem."""
    amount = change.size_bytes if of_bytes else change.messages
    return {
        "sum": amount,
        "tps": amount * 1000 / change.elapsed_ms,
        "avgpt": amount / change.times if change.times else 0.0,
    }
