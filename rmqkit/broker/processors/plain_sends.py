"""The short way of a send: what nearly all of them need and nothing else.

A send is plain when it carries one message to an ordinary topic, none of its properties has a meaning for the broker beyond the queue's tags code and the
index, and no hook wants to be asked about it. Every figure in docs/flow.md is about these; what is checked here is checked, and answered, in
`processors.send` for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec

from rmqkit.abc import Appended, Peer
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import destination
from rmqkit.hooks import ManyRequestsHook, ManySendsHook, RpcHook
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6, TRANSACTION_MASK
from rmqkit.protocol.codes import VERSION, RequestCode, SerializeType
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2
from rmqkit.protocol.tags import tags_code

#: A client that sends one of these has it replaced, or removed.
OUR_PROPERTIES = frozenset({props.MSG_REGION, props.TRACE_ON, props.CLUSTER, props.POP_CK})
#: Bits a client has no say in.
OUR_BITS = BORN_HOST_V6 | STORE_HOST_V6 | NEED_UNWRAP | INNER_BATCH | TRANSACTION_MASK

_SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)
_JSON = int(SerializeType.JSON)
#: Length and header length (serialisation 0) of a frame without a body.
_prefix = Struct(">ii").pack


class PlainSends:
    """Requests to messages, and places to answers.

    topics    names of ordinary topics and their numbers of queues; the owner keeps it true
    peculiar  properties that a plain message does not carry
    id_form   an offset message id with the store host in place and a form for the offset
    suffix    the properties the broker adds, as text
    """

    def __init__(self, broker: BrokerContext, topics: Mapping[str, int], peculiar: frozenset[str], id_form: str, suffix: str) -> None:
        self._queues_of = topics.get
        self._peculiar = peculiar
        self._suffix = suffix
        self._max_body_bytes = broker.config.max_message_size
        self._v6_bit = STORE_HOST_V6 if len(broker.store_host) > 8 else 0
        self._form = _success_form(id_form, broker.config.region_id, broker.config.trace_on)

    @classmethod
    def for_broker(cls, broker: BrokerContext, topics: Mapping[str, int], id_form: str, suffix: str) -> PlainSends | None:
        """None when a plugin wants to be asked about every message or request: then no send is plain."""
        wants = broker.put.wants
        if wants is None or not all(isinstance(hook, ManySendsHook) for hook in broker.registry.send_message_hooks):
            return None
        if any(_asks_about_sends(hook) for hook in broker.registry.rpc_hooks):
            return None
        return cls(broker, topics, wants | destination.SPECIAL_PROPERTIES | OUR_PROPERTIES, id_form, suffix)

    def messages(self, requests: Sequence[Command], peer: Peer) -> list[PutMessage] | None:
        """One message for each request, None when not all of them are plain."""
        queues_of, max_body_bytes, suffix, peculiar = self._queues_of, self._max_body_bytes, self._suffix, self._peculiar
        born_host = peer.remote_host
        host_bits = self._v6_bit | (BORN_HOST_V6 if len(born_host) > 8 else 0)
        messages: list[PutMessage] = []
        for request in requests:
            header, body = request.typed, request.body
            if type(header) is not SendMessageRequestHeaderV2 or request.code != _SEND_V2 or request.codec != _JSON or header.batch:
                return None
            text, topic, queue_id = header.properties, header.topic, header.queue_id
            if not (text and 0 < len(body) <= max_body_bytes and 0 <= queue_id < queues_of(topic, 0)):
                return None
            properties = props.decode(text)
            if props.UNIQ_KEY not in properties or not peculiar.isdisjoint(properties):
                return None
            try:
                stored = (text + suffix if text[-1] == props.PROPERTY_END else text + props.PROPERTY_END + suffix).encode()
            except UnicodeEncodeError:
                return None
            if len(stored) > MAX_PROPERTIES_BYTES:
                return None
            tags = properties.get(props.TAGS)
            messages.append(
                PutMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=body,
                    properties=properties,
                    properties_bytes=stored,
                    flag=header.flag,
                    sys_flag=header.sys_flag & ~OUR_BITS | host_bits,
                    born_timestamp_ms=header.born_timestamp,
                    born_host=born_host,
                    reconsume_times=header.reconsume_times or 0,
                    tags_code=tags_code(tags) if tags else 0,
                    wait=properties.get(props.WAIT) != "false",
                )
            )
        return messages

    def answers(self, requests: Sequence[Command], messages: Sequence[PutMessage], landed: Sequence[Appended]) -> list[bytes] | None:
        """A whole frame for each, None when a unique key cannot stand in JSON as it is."""
        form = self._form
        frames: list[bytes] = []
        for request, message, (queue_offset, physical_offset, _, _) in zip(requests, messages, landed, strict=True):
            key = message.properties[props.UNIQ_KEY]
            if not (key.isalnum() and key.isascii()):
                return None
            text = form % (physical_offset, message.queue_id, queue_offset, key.encode(), request.opaque)
            size = len(text)
            frames.append(_prefix(size + 4, size) + text)
        return frames


def _asks_about_sends(hook: RpcHook) -> bool:
    return not isinstance(hook, ManyRequestsHook) and (hook.codes is None or _SEND_V2 in hook.codes)


def _success_form(id_form: str, region: str, trace_on: bool) -> bytes:
    """The answer as a form to be filled in with physical offset, queue id, queue offset, unique key and opaque; it takes a fifth of the encoder's time."""
    region_json = msgspec.json.encode(region).decode().replace("%", "%%")
    return (
        '{"code":0,"extFields":{"MSG_REGION":'
        + region_json
        + ',"TRACE_ON":"'
        + ("true" if trace_on else "false")
        + '","msgId":"'
        + id_form
        + '","queueId":"%d","queueOffset":"%d","transactionId":"%b"},"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
        + str(VERSION)
        + "}"
    ).encode()
