"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (Java: SendMessageProcessor; behaviour sheet, C3).

Requests that arrived together go into the store by one append. Those with nothing to say about them take the short way (`plain_sends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import randrange

import msgspec

from rmqkit.abc import Answer, Appended, BatchProcessor, Outcome, Peer, Postponed
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import destination
from rmqkit.broker.processors.plain_sends import OUR_BITS, OUR_PROPERTIES, PlainSends
from rmqkit.broker.put import Put
from rmqkit.broker.send_hooks import SendHooks, WatchedSend
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import BORN_HOST_V6, MULTI_TAGS, STORE_HOST_V6
from rmqkit.protocol import batch
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqkit.protocol.message_id import UniqueKeys, offset_message_id
from rmqkit.protocol.tags import tags_code
from rmqkit.remoting.serve import error_answer

Header = SendMessageRequestHeader | SendMessageRequestHeaderV2
_SEND_V1 = int(RequestCode.SEND_MESSAGE)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


class _Prepared(msgspec.Struct, gc=False):
    """A checked request: the messages to store and what the answer needs."""

    request: Command
    messages: Sequence[PutMessage]
    unique_key: str
    watched: WatchedSend | None = None


#: A request whose messages are stored, and where.
_Stored = tuple[_Prepared, Sequence[Appended]]


class SendProcessor(BatchProcessor):
    """Stores what clients send."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._hooks = SendHooks.for_broker(broker)
        # An offset message id with the store host in place; see protocol.message_id.
        self._id_form = offset_message_id(broker.store_host, 0)[:-16] + "%016X"
        self._v6_bit = STORE_HOST_V6 if len(broker.store_host) > 8 else 0
        self._keys = UniqueKeys(broker.store_host[:4] if len(broker.store_host) == 8 else b"\x7f\x00\x00\x01")
        config = broker.config
        self._max_body_bytes = config.max_message_size
        self._our_properties = {
            props.MSG_REGION: config.region_id,
            props.TRACE_ON: "true" if config.trace_on else "false",
            props.CLUSTER: config.broker_cluster_name,
        }
        self._suffix = props.encode(self._our_properties)
        #: Topics without peculiarities -> number of queues; what stands here needs no further check. Forgotten when any topic changes.
        self._plain_topics: dict[str, int] = {}
        broker.topics.on_change.append(self._plain_topics.clear)
        self._plain = PlainSends.for_broker(broker, self._plain_topics, self._id_form, self._suffix)

    def process(self, request: Command, peer: Peer) -> Outcome:
        return self.process_many([request], peer)[0]

    def process_many(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
        outcomes = None if self._plain is None else self._process_plain(self._plain, requests, peer)
        return self._process_any(requests, peer) if outcomes is None else outcomes

    def _process_plain(self, plain: PlainSends, requests: Sequence[Command], peer: Peer) -> list[Outcome] | None:
        """Serve requests that are plain one and all; None, and nothing was stored, when one is not, or was refused: why is found the long way."""
        messages = plain.messages(requests, peer)
        if messages is None:
            return None
        put = self._broker.put
        try:
            landed = put.put_plain(messages)
        except RequestRefused:
            return None
        if put.nothing_to_wait_for(landed[-1]):
            self._broker.stats.put_many(messages, landed)
            if self._hooks is not None:
                self._hooks.after_many(peer, requests, messages, landed, ResponseCode.SUCCESS)
            return [*self._plain_answers(plain, requests, messages, landed)]
        if all(map(put.must_wait, messages, landed)):
            self._broker.stats.put_many(messages, landed)
            put.when_settled(
                any(message.wait for message in messages),
                landed[-1],
                partial(self._plain_settled, plain, requests, messages, landed, peer, peer.postpone(len(requests))),
            )
            return [None] * len(requests)
        waiting = [(at, _prepared(request, message)) for at, (request, message) in enumerate(zip(requests, messages, strict=True))]
        outcomes: list[Outcome] = [None] * len(waiting)
        self._answer(waiting, landed, outcomes, peer)
        return outcomes

    def _plain_answers(
        self, plain: PlainSends, requests: Sequence[Command], messages: Sequence[PutMessage], landed: Sequence[Appended]
    ) -> Sequence[Answer]:
        return plain.answers(requests, messages, landed) or [
            self._success(_prepared(request, message), (at,), 0) for request, message, at in zip(requests, messages, landed, strict=True)
        ]

    def _plain_settled(
        self,
        plain: PlainSends,
        requests: Sequence[Command],
        messages: Sequence[PutMessage],
        landed: Sequence[Appended],
        peer: Peer,
        answered: Postponed,
        result: int | RequestRefused,
    ) -> None:
        if result == ResponseCode.SUCCESS:
            answered(list(zip(requests, self._plain_answers(plain, requests, messages, landed), strict=True)))
            if self._hooks is not None:
                self._hooks.after_many(peer, requests, messages, landed, ResponseCode.SUCCESS)
        else:
            late = [(_prepared(request, message), (at,)) for request, message, at in zip(requests, messages, landed, strict=True)]
            self._answer_settled(late, peer, answered, result)

    def _process_any(self, requests: Sequence[Command], peer: Peer) -> list[Outcome]:
        now_ms = self._clock.now_ms()
        outcomes: list[Outcome] = []
        singles: list[PutMessage] = []
        waiting: list[tuple[int, _Prepared]] = []
        for request in requests:
            watched = None
            try:
                header, properties = _header(request)
                if self._hooks is not None:
                    watched = self._hooks.before(request, header, properties, peer, now_ms)
                prepare = self._prepare_batch if header.batch or request.code == _SEND_BATCH else self._prepare
                prepared = prepare(request, header, properties, peer, now_ms)
                prepared.watched = watched
                if len(prepared.messages) == 1:
                    waiting.append((len(outcomes), prepared))
                    singles.append(prepared.messages[0])
                    outcomes.append(None)
                else:
                    # A batch keeps its place in the order of the connection.
                    self._store(singles, waiting, outcomes, peer)
                    outcomes.append(self._store_batch(prepared, peer))
            except Exception as error:  # noqa: BLE001 - one request's failure is its own answer
                self._broker.stats.put_failures += 1
                refused = error_answer(request, error)
                if watched is not None:
                    watched.ended(refused.code, refused.remark)
                outcomes.append(refused)
        self._store(singles, waiting, outcomes, peer)
        return outcomes

    # Checking.

    def _prepare(self, request: Command, header: Header, properties: dict[str, str], peer: Peer, now_ms: int) -> _Prepared:
        body = request.body
        if not body:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the message has no body; at least one byte is needed")
        if len(body) > self._max_body_bytes:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"body of {len(body)} bytes, at most {self._max_body_bytes} are allowed (maxMessageSize)"
            )
        text = header.properties or ""
        destination.refuse_unsupported(self._broker, properties)
        if 0 <= header.queue_id < self._plain_topics.get(header.topic, 0):
            message = self._message(header, header.topic, header.queue_id, body, properties, text, peer)
        else:
            message = self._to_peculiar_topic(request, header, properties, text, peer, now_ms)
        if len(message.properties_bytes) > MAX_PROPERTIES_BYTES:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"properties of {len(message.properties_bytes)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed",
            )
        return _prepared(request, message)

    def _to_peculiar_topic(
        self, request: Command, header: Header, properties: dict[str, str], text: str, peer: Peer, now_ms: int
    ) -> PutMessage:
        """A message whose topic may have to be made, chosen a queue of, or replaced. Raises RequestRefused."""
        topic = destination.topic_for_send(
            self._broker, header.topic, header.default_topic, header.default_topic_queue_nums, peer.remote_text
        )
        destination.check_queue(topic, header.queue_id)
        queue_id = header.queue_id if header.queue_id >= 0 else randrange(max(topic.write_queue_nums, 1))
        message = self._message(header, topic.topic_name, queue_id, request.body, properties, text, peer)
        many_tags = topic.topic_filter_type == "MULTI_TAG"
        if many_tags:
            message.sys_flag |= MULTI_TAGS
        if topic.topic_name.startswith(names.RETRY_PREFIX):
            self._send_to_dead_letters_if_due(message, header, request.version, now_ms)
        elif not many_tags and not topic.order:
            self._plain_topics[topic.topic_name] = max(topic.write_queue_nums, topic.read_queue_nums)
        return message

    def _message(
        self, header: Header, topic: str, queue_id: int, body: bytes, properties: dict[str, str], text: str, peer: Peer
    ) -> PutMessage:
        """The message with the properties a broker adds: region, trace switch, cluster, and a unique key when the client set none."""
        rewrite = not OUR_PROPERTIES.isdisjoint(properties)
        if props.UNIQ_KEY not in properties:
            properties[props.UNIQ_KEY] = self._keys.make(self._clock.now_ms())
            rewrite = True
        if rewrite:
            properties.pop(props.POP_CK, None)
            properties.update(self._our_properties)
            stored = props.encode(properties)
        else:
            stored = props.terminated(text) + self._suffix
        born_host = peer.remote_host
        return PutMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            properties_bytes=stored.encode(),
            flag=header.flag,
            sys_flag=header.sys_flag & ~OUR_BITS | self._v6_bit | (BORN_HOST_V6 if len(born_host) > 8 else 0),
            born_timestamp_ms=header.born_timestamp,
            born_host=born_host,
            reconsume_times=header.reconsume_times or 0,
            tags_code=tags_code(properties.get(props.TAGS)),
            wait=properties.get(props.WAIT) != "false",
        )

    def _send_to_dead_letters_if_due(self, message: PutMessage, header: Header, version: int, now_ms: int) -> None:
        group = message.topic[len(names.RETRY_PREFIX) :]
        if destination.retries_exhausted(self._broker, group, message.reconsume_times, header.max_reconsume_times, version, now_ms):
            self._broker.stats.dead_lettered[group, message.topic] += 1
            message.topic = destination.dead_letter_topic(self._broker, group).topic_name
            message.queue_id = 0
            if props.DELAY in message.properties:
                message.set_properties({name: value for name, value in message.properties.items() if name != props.DELAY})

    def _prepare_batch(self, request: Command, header: Header, outer: dict[str, str], peer: Peer, now_ms: int) -> _Prepared:
        if header.topic.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch may not go to a retry topic")
        if len(request.body) > self._max_body_bytes:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch of {len(request.body)} bytes, at most {self._max_body_bytes} are allowed (maxMessageSize)",
            )
        topic = destination.topic_for_send(
            self._broker, header.topic, header.default_topic, header.default_topic_queue_nums, peer.remote_text
        )
        destination.check_queue(topic, header.queue_id)
        destination.refuse_unsupported(self._broker, outer)
        queue_id = header.queue_id if header.queue_id >= 0 else randrange(max(topic.write_queue_nums, 1))
        try:
            items = batch.decode(request.body)
            if not items:
                raise DecodeError("it holds no message")
            messages = self._batch_messages(header, topic.topic_name, queue_id, outer.get(props.WAIT) != "false", items, peer)
        except (DecodeError, UnicodeDecodeError) as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from error
        return _Prepared(request, messages, outer.get(props.UNIQ_KEY, ""))

    def _batch_messages(
        self, header: Header, topic: str, queue_id: int, wait: bool, items: Sequence[batch.BatchItem], peer: Peer
    ) -> list[PutMessage]:
        """The messages of a batch; the broker adds nothing to their properties (store-format sheet, section 2.7)."""
        born_host, born_timestamp_ms, reconsume_times = peer.remote_host, header.born_timestamp, header.reconsume_times or 0
        sys_flag = header.sys_flag & ~OUR_BITS | self._v6_bit | (BORN_HOST_V6 if len(born_host) > 8 else 0)
        special, decode = destination.SPECIAL_PROPERTIES, props.decode
        messages: list[PutMessage] = []
        for flag, body, stored in items:
            if not body:
                raise DecodeError("one of its messages has no body")
            properties = decode(stored.decode())
            if not special.isdisjoint(properties):
                destination.refuse_unsupported(self._broker, properties)
                if props.DELAY in properties:
                    raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "delayed messages may not travel in a batch")
            tags = properties.get(props.TAGS)
            messages.append(
                PutMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=body,
                    properties=properties,
                    properties_bytes=stored,
                    flag=flag,
                    sys_flag=sys_flag,
                    born_timestamp_ms=born_timestamp_ms,
                    born_host=born_host,
                    reconsume_times=reconsume_times,
                    tags_code=tags_code(tags) if tags else 0,
                    wait=wait,
                )
            )
        return messages

    # Storing and answering.

    def _store(self, singles: list[PutMessage], waiting: list[tuple[int, _Prepared]], outcomes: list[Outcome], peer: Peer) -> None:
        if singles:
            self._answer(waiting, self._broker.put.put(singles), outcomes, peer)
            singles.clear()
            waiting.clear()

    def _answer(self, waiting: Sequence[tuple[int, _Prepared]], puts: Sequence[Put], outcomes: list[Outcome], peer: Peer) -> None:
        """Put the answers of what was stored, or refused, into its places of `outcomes`; of those that wait for the flush they come later."""
        last = puts[-1]
        settled = not isinstance(last, RequestRefused) and self._broker.put.nothing_to_wait_for(last)
        count, success, must_wait = self._broker.stats.put, self._success, self._broker.put.must_wait
        done: list[_Stored] = []
        late: list[_Stored] = []
        for (at, prepared), put in zip(waiting, puts, strict=True):
            if isinstance(put, RequestRefused):
                self._broker.stats.put_failures += 1
                outcomes[at] = self._refused(prepared, put)
                continue
            message = prepared.messages[0]
            count(message.topic, put.size_bytes)
            if settled or not must_wait(message, put):
                outcomes[at] = success(prepared, (put,), 0)
                if self._hooks is not None:
                    done.append((prepared, (put,)))
            else:
                late.append((prepared, (put,)))
        self._after_plain(done, peer, ResponseCode.SUCCESS)
        if late:
            self._answer_later(late, peer)

    def _store_batch(self, prepared: _Prepared, peer: Peer) -> Outcome:
        try:
            landed = self._broker.put.put_together(prepared.messages)
        except RequestRefused as refusal:
            self._broker.stats.put_failures += 1
            return self._refused(prepared, refusal)
        self._broker.stats.put_many(prepared.messages, landed)
        if self._broker.put.must_wait(prepared.messages[-1], landed[-1]):
            self._answer_later([(prepared, landed)], peer)
            return None
        return self._success(prepared, landed, ResponseCode.SUCCESS)

    def _answer_later(self, late: Sequence[_Stored], peer: Peer) -> None:
        """Answer what was stored together once the last of it is settled: one flush serves them all."""
        _, landed = late[-1]
        wait = any(prepared.messages[-1].wait for prepared, _ in late)
        self._broker.put.when_settled(wait, landed[-1], partial(self._answer_settled, late, peer, peer.postpone(len(late))))

    def _answer_settled(
        self,
        late: Sequence[_Stored],
        peer: Peer,
        answered: Postponed,
        result: int | RequestRefused,
    ) -> None:
        if isinstance(result, RequestRefused):
            answered([(prepared.request, self._refused(prepared, result)) for prepared, _ in late])
            self._after_plain(late, peer, result.code, result.remark)
        else:
            answered([(prepared.request, self._success(prepared, places, result)) for prepared, places in late])
            self._after_plain(late, peer, result)

    def _after_plain(self, stored: Sequence[_Stored], peer: Peer, code: int, remark: str | None = None) -> None:
        """Show hooks the plain sends among these; of the others they were told with their answers."""
        if self._hooks is None:
            return
        plain = [(prepared, at) for prepared, (at, *_) in stored if prepared.watched is None]
        if plain:
            requests, messages = [prepared.request for prepared, _ in plain], [prepared.messages[0] for prepared, _ in plain]
            self._hooks.after_many(peer, requests, messages, [at for _, at in plain], code, remark)

    def _refused(self, prepared: _Prepared, refusal: RequestRefused) -> Command:
        if prepared.watched is not None:
            prepared.watched.ended(refusal.code, refusal.remark)
        return answer(prepared.request, refusal.code, refusal.remark)

    def _success(self, prepared: _Prepared, landed: Sequence[Appended], code: int) -> Answer:
        message, request = prepared.messages[0], prepared.request
        first = landed[0]
        ids = self._id_form % first.physical_offset if len(landed) == 1 else ",".join([self._id_form % at.physical_offset for at in landed])
        if prepared.watched is not None:
            prepared.watched.ended(code, None, ids, prepared.messages, landed)
        config = self._broker.config
        header = SendMessageResponseHeader(
            msg_id=ids,
            queue_id=message.queue_id,
            queue_offset=first.queue_offset,
            transaction_id=prepared.unique_key or None,
            region_id=config.region_id,
            trace_on=config.trace_on,
        )
        return answer(request, code, header=header)


def _header(request: Command) -> tuple[Header, dict[str, str]]:
    """The header of a send, and the properties in it. Raises HeaderError."""
    header: Header
    if request.code == _SEND_V1:
        header = request.header(SendMessageRequestHeader)
    else:
        header = request.header(SendMessageRequestHeaderV2)
    return header, props.decode(header.properties or "")


def _prepared(request: Command, message: PutMessage) -> _Prepared:
    return _Prepared(request, (message,), message.properties[props.UNIQ_KEY])


__all__ = ["SendProcessor"]
