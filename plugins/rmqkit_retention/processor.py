"""Cleaning by request (wire-protocol sheet, section 3.7; Java: AdminBrokerProcessor.deleteExpiredCommitLog, cleanExpiredConsumeQueue, cleanUnusedTopic)."""

from __future__ import annotations

import trio

from rmqkit.abc import Outcome, Peer, RequestProcessor
from rmqkit.broker.context import BrokerContext
from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit_retention.service import RetentionService

CODES = (RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC)


class CleanProcessor(RequestProcessor):
    """DELETE_EXPIRED_COMMITLOG is answered at once, the others when they are done."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def process(self, request: Command, peer: Peer) -> Outcome:
        if request.code == RequestCode.DELETE_EXPIRED_COMMITLOG:
            service = self._broker.registry.services.get(RetentionService.name)
            if not isinstance(service, RetentionService) or service.name in self._broker.config.disabled_services:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this broker deletes nothing: the service 'retention' is switched off")
            service.ask()
            return answer(request)
        if request.code == RequestCode.CLEAN_UNUSED_TOPIC:
            return self._clean_unused_topics(request)
        return self._clean_expired_queues(request)

    async def _clean_expired_queues(self, request: Command) -> Command:
        """Forget queues all of whose messages are gone. Their offsets begin at 0 again, as in Java; queues of system topics stay."""
        store = self._broker.store
        await store.trim(0)
        for topic, queue_ids in store.queues().items():
            for queue_id in () if names.is_system_topic(topic) else queue_ids:
                if store.min_offset(topic, queue_id) == store.max_offset(topic, queue_id) > 0:
                    store.delete_queue(topic, queue_id)
                    await trio.lowlevel.checkpoint()
        return answer(request)

    async def _clean_unused_topics(self, request: Command) -> Command:
        """Forget the queues of topics that the broker does not know any more."""
        store = self._broker.store
        for topic in list(store.queues()):
            if topic not in self._broker.topics.configs and not names.is_system_topic(topic):
                store.delete_topic(topic)
                await trio.lowlevel.checkpoint()
        return answer(request)
