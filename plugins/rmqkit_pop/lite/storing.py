"""Puts messages with a lite topic into the queue of it."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.run import MessageRun
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import ResponseCode
from rmqkit_pop.lite.service import LiteService
from rmqkit_pop.lite.topics import LiteTopics


class PutLite(NeedsBroker, EachPutHook):
    """Gives a message of a topic of the type LITE the queue of its lite topic. After the hooks that keep
    messages until later."""

    wants = frozenset({props.LITE_TOPIC})

    def open(self, broker: RequestBroker) -> None:
        service = broker.registry.services.get(LiteService.name)
        self._service = service if isinstance(service, LiteService) else None

    @property
    def _lites(self) -> LiteTopics | None:
        """The lite topics; None where the service is switched off."""
        return None if self._service is None else self._service.lites

    def before_each(self, message: PutMessage) -> None:
        lites = self._lites
        if lites is None or not lites.is_parent(message.topic):
            return
        lite_topic = message.properties[props.LITE_TOPIC]
        fault = names.lite_topic_fault(lite_topic)
        if fault is not None:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, fault)
        name = names.lite_queue(message.topic, lite_topic)
        most = lites.settings.max_lmq_consume_queue_num
        if lites.count >= most and name not in lites.queues.get(message.topic, ()):
            raise RequestRefused(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"the broker has {lites.count} lite topics, at most {most} are allowed"
                " (maxLmqConsumeQueueNum); let them expire with the topic attribute lite.topic.expiration",
            )
        message.topic, message.queue_id = name, 0

    def after_put(self, run: MessageRun, results: Sequence[Appended | RequestRefused]) -> None:
        lites = self._lites
        if lites is None:
            return
        ends: dict[str, int] = {}
        for message, result in zip(run, results, strict=True):
            if isinstance(result, Appended) and message.topic.startswith(names.LITE_PREFIX):
                ends[message.topic] = result.queue_offset + 1
        for name, end in ends.items():
            parts = names.lite_parts(name)
            if parts is not None:
                lites.stored(parts[0], name, end)


__all__ = ["PutLite"]
