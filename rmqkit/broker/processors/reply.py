"""SEND_REPLY_MESSAGE: the answer of a request-reply pair is pushed to the requester's connection (Java:
ReplyMessageProcessor)."""

from __future__ import annotations

from functools import partial

from rmqkit.broker.processors import send_checks as checks
from rmqkit.errors import ClientError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.plugin.request import Answer, EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.command import request as new_request
from rmqkit.protocol.headers import (
    PushReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rmqkit.toolkit.unsaved import when_saved

_PUSH_TIMEOUT_MS = 10_000
#: Fields of a send that the push repeats.
_SAME = {*PushReplyMessageRequestHeader.__struct_fields__} & {*SendMessageRequestHeader.__struct_fields__}
_SAME -= {"properties"}


class ReplyProcessor(EachRequest):
    """Finds the requester by the client id in REPLY_TO_CLIENT. The reply is delivered without being
    stored."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return when_saved(partial(self._reply, request, peer), request, peer)

    def _reply(self, request: Command, peer: Peer) -> Outcome:
        header = checks.send_header(request)
        topic = checks.topic_for_send(
            self._broker,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            peer.remote_text,
        )
        checks.check_queue(topic, header.queue_id)
        text = header.properties or ""
        requester = props.decode(text).get(props.REPLY_TO_CLIENT)
        if not requester:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"reply message properties[{props.REPLY_TO_CLIENT}] is null"
            )
        client = self._broker.clients.find(requester)
        if client is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{requester}> not found."
            )
        now_ms = self._broker.clock.now_ms()
        push = new_request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            PushReplyMessageRequestHeader(
                born_host=peer.remote_text,
                store_host=self._broker.address,
                store_timestamp=now_ms,
                properties=props.edited(text.encode(), (), {props.PUSH_REPLY_TIME: str(now_ms)}).decode(),
                **{name: getattr(header, name) for name in _SAME},
            ),
            request.body,
        )
        return peer.answer_async(request, partial(self._push, request, client.peer, push, header.queue_id))

    async def _push(self, request: Command, requester: Peer, push: Command, queue_id: int) -> Answer:
        try:
            response = await requester.call(push, _PUSH_TIMEOUT_MS)
        except ClientError as error:
            return answer(request, ResponseCode.SYSTEM_ERROR, f"push reply message fail: {error}")
        if response.code != ResponseCode.SUCCESS:
            return answer(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"push reply message to {requester.remote_text} fail: {response.remark}",
            )
        config = self._broker.config
        header = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
        header.region_id, header.trace_on = config.region_id, config.trace_on
        return answer(request, header=header)
