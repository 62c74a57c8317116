"""LITE_SUBSCRIPTION_CTL (Java: LiteSubscriptionCtlProcessor): what clients subscribe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmqkit.errors import RequestRefused
from rmqkit.model.attributes import LITE_SUB_QUOTA, LITE_SUB_RESET_EXCLUSIVE, LITE_SUB_RESET_UNSUBSCRIBE
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.store import Boundary
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.lite import LiteSubscription, LiteSubscriptionCtlRequestBody, OffsetOption
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit_pop.lite.popping import check_parent
from rmqkit_pop.lite.subscriptions import ALL, Subscriber
from rmqkit_pop.lite.topics import LiteTopics, lite_queues

#: Changes in one request, and lite topics of one client where its group says nothing else.
_MAX_CHANGES = 1_024
_QUOTA = 2_000
_NO_QUOTA = -1
_MAX_CLIENT_ID = 255
#: Clients with lite topics, which may be as many as connections.
_MAX_CLIENTS = 100_000
_LAST, _FIRST, _END = range(3)


class LiteControlProcessor(EachRequest):
    """Adds and ends subscriptions."""

    def __init__(self, lites: LiteTopics) -> None:
        self._lites = lites

    def handle(self, request: Command, peer: Peer) -> Outcome:
        self._lites.engine.require_ready()
        body = request.decode_body(LiteSubscriptionCtlRequestBody) if request.body else None
        if body is None or not body.subscription_set:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "the request changes no subscription")
        if len(body.subscription_set) > _MAX_CHANGES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.subscription_set)} changes in one request, at most {_MAX_CHANGES} are allowed",
            )
        return peer.answer_async(request, partial(self._change_all, request, peer, body.subscription_set))

    async def _change_all(self, request: Command, peer: Peer, changes: Sequence[LiteSubscription]) -> Command:
        for change in changes:
            await self._change(peer, change)
        return answer(request)

    async def _change(self, peer: Peer, change: LiteSubscription) -> None:
        """Make one change. Raises RequestRefused, without effect."""
        lites = self._lites
        if not 0 < len(change.client_id) <= _MAX_CLIENT_ID:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"a client id has 1 to {_MAX_CLIENT_ID} characters"
            )
        table, now_ms = lites.subscriptions, lites.broker.clock.now_ms()
        known = table.of(change.group, change.client_id)
        if change.action == "COMPLETE_REMOVE":
            if known is not None:
                await self._end(known, list(known.queues))
                table.forget(known)
            return
        wanted = change.lite_topic_set or []
        try:
            queues = lite_queues(change.topic, [each for each in wanted if each != ALL])
        except ValueError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if change.action == "PARTIAL_REMOVE":
            if known is not None:
                await self._end(known, queues)
            return
        if change.action not in ("PARTIAL_ADD", "COMPLETE_ADD"):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{change.action[:30]!r} is not an action")
        group = await self._group(change.group)
        check_parent(lites, change.topic, group)
        self._check_quota(group, known, queues, complete=change.action == "COMPLETE_ADD")
        if known is None and len(table.clients) >= _MAX_CLIENTS:
            raise RequestRefused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{len(table.clients)} clients have lite topics here, at most {_MAX_CLIENTS} are allowed",
            )
        client = table.said(change.group, change.client_id, change.topic, now_ms)
        client.peer = peer
        if ALL in wanted:
            table.add_all(client, lites.queues.get(change.topic, ()))
        new = [name for name in queues if name not in client.queues]
        taken = lites.take_over(client, new) if lites.is_exclusive(change.group) else []
        if change.action == "COMPLETE_ADD":
            table.replace(client, queues)
        else:
            table.add(client, queues)
        if change.offset_option is not None:
            await self._begin_at(client, queues, change.offset_option)
        elif _is_true(group, LITE_SUB_RESET_EXCLUSIVE):
            await self._begin_at(client, taken, OffsetOption(type="POLICY", value=_FIRST))
        lites.wake_client(client)

    async def _group(self, name: str) -> SubscriptionGroupConfig:
        """The settings of a group that may consume. Raises RequestRefused."""
        group = await self._lites.broker.groups.ensure(name)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name[:300]!r} does not exist"
            )
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, group.consume_refusal)
        return group

    def _check_quota(
        self,
        group: SubscriptionGroupConfig,
        known: Subscriber | None,
        queues: Sequence[str],
        *,
        complete: bool,
    ) -> None:
        had = {} if known is None else known.queues
        new = sum(name not in had for name in queues)
        text = group.attributes.get(LITE_SUB_QUOTA, "")
        quota = int(text) if text.lstrip("-").isdigit() else _QUOTA
        own = len(queues) if complete else len(had) + new
        most = self._lites.settings.max_lite_subscription_count
        if (quota != _NO_QUOTA and own > quota) or self._lites.subscriptions.count + new > most:
            raise RequestRefused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite subscription quota exceeded: {own} lite topics of this client, at most {quota} are"
                f" allowed ({LITE_SUB_QUOTA} of group {group.group_name}), and {most} of all clients"
                " (maxLiteSubscriptionCount)",
            )

    async def _end(self, client: Subscriber, queues: Sequence[str]) -> None:
        had = [name for name in queues if name in client.queues]
        self._lites.subscriptions.remove(client, had)
        group = self._lites.broker.groups.configs.get(client.group)
        if group is not None and _is_true(group, LITE_SUB_RESET_UNSUBSCRIBE):
            await self._begin_at(client, had, OffsetOption(type="POLICY", value=_FIRST))

    async def _begin_at(self, client: Subscriber, queues: Sequence[str], option: OffsetOption) -> None:
        """Let the group go on at another place of some queues. Raises RequestRefused."""
        broker = self._lites.broker
        for name in queues:
            offset = await self._offset(name, option)
            if offset is not None and broker.store.max_offset(name, 0) > 0:
                broker.offsets.reset(client.group, name, 0, offset)

    async def _offset(self, name: str, option: OffsetOption) -> int | None:
        """The offset that an option means; None for the one where the group is. Raises RequestRefused."""
        store, kind, value = self._lites.broker.store, option.type, option.value
        first, end = store.min_offset(name, 0), store.max_offset(name, 0)
        if kind == "POLICY" and value in (_LAST, _FIRST, _END):
            return {_LAST: None, _FIRST: first, _END: end}[value]
        if kind == "OFFSET" and value >= 0:
            return max(first, min(value, end))
        if kind == "TAIL_N" and value >= 0:
            return max(first, end - value)
        if kind == "TIMESTAMP" and value >= 0:
            return await read_when_cached(store, lambda: store.offset_by_time(name, 0, value, Boundary.LOWER))
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"{kind[:30]!r} with the value {value} is not a place to begin"
        )


def _is_true(group: SubscriptionGroupConfig, attribute: str) -> bool:
    return group.attributes.get(attribute) == "true"


__all__ = ["LiteControlProcessor"]
