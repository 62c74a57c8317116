"""Cleaning by request (wire-protocol sheet, section 3.7; Java:
AdminBrokerProcessor.deleteExpiredCommitLog, cleanExpiredConsumeQueue, cleanUnusedTopic)."""

from __future__ import annotations

from functools import partial

import trio

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit_retention.service import RetentionService

CODES = (
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
)


class CleanProcessor(EachRequest):
    """DELETE_EXPIRED_COMMITLOG is answered at once, the other requests when they are done."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        if request.code == RequestCode.DELETE_EXPIRED_COMMITLOG:
            service = self._broker.registry.services.get(RetentionService.name)
            if (
                not isinstance(service, RetentionService)
                or service.name in self._broker.config.disabled_services
            ):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    "this broker deletes nothing: the service 'retention' is switched off",
                )
            service.ask()
            return answer(request)
        if request.code == RequestCode.CLEAN_UNUSED_TOPIC:
            return peer.answer_async(request, partial(self._clean_unused_topics, request))
        return peer.answer_async(request, partial(self._clean_expired_queues, request))

    async def _clean_expired_queues(self, request: Command) -> Command:
        """Remove queues whose messages are all deleted. Their offsets start at 0 again, as in Java; queues of
        system topics stay, and those of lite topics, which expire by themselves."""
        store = self._broker.store
        await store.trim(0)
        for topic, queue_ids in store.queues().items():
            stays = names.is_system_topic(topic) or names.lite_parts(topic) is not None
            for queue_id in () if stays else queue_ids:
                if store.min_offset(topic, queue_id) == store.max_offset(topic, queue_id) > 0:
                    store.delete_queue(topic, queue_id)
                    await trio.lowlevel.checkpoint()
        return answer(request)

    async def _clean_unused_topics(self, request: Command) -> Command:
        """Remove the queues of topics that the broker no longer has, and of their lite topics."""
        store = self._broker.store
        for topic in list(store.queues()):
            if names.owning_topic(topic) not in self._broker.topics.configs and not names.is_system_topic(
                topic
            ):
                store.delete_topic(topic)
                await trio.lowlevel.checkpoint()
        return answer(request)
