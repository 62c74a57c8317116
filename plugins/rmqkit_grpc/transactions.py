"""EndTransaction, and the broker's questions for transactions that nobody has ended (gRPC sheet, section
7.4)."""

from __future__ import annotations

from typing import Any

from rmqkit.model import properties as props
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rmqkit_grpc import transaction_id
from rmqkit_grpc.delivering import Delivery, stored_in
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Session, Steps, name_of, topic_of
from rmqkit_grpc.statuses import Refusal, status_of
from rmqkit_grpc.transaction_id import Transaction

_Response = V2.messages["EndTransactionResponse"]
_Telemetry = V2.messages["TelemetryCommand"]
_Resource = V2.messages["Resource"]
_RESOLUTIONS = V2.enums["TransactionResolution"]
_CHECKED = V2.enums["TransactionSource"]["SOURCE_SERVER_CHECK"]
_FLAGS = {_RESOLUTIONS["COMMIT"]: TRANSACTION_COMMIT, _RESOLUTIONS["ROLLBACK"]: TRANSACTION_ROLLBACK}


def end_transaction(exchange: Exchange, asked: Any) -> Steps:
    """EndTransaction."""
    topic = topic_of(asked.topic)
    if not asked.transaction_id:
        raise Refusal(Code.INVALID_TRANSACTION_ID, "the transaction has no id")
    flag = _FLAGS.get(asked.resolution)
    if flag is None:
        raise Refusal(Code.BAD_REQUEST, "a transaction is committed or rolled back")
    transaction = transaction_id.parse(asked.transaction_id)
    header = EndTransactionRequestHeader(
        producer_group=topic,
        tran_state_table_offset=transaction.queue_offset,
        commit_log_offset=transaction.log_offset,
        commit_or_rollback=flag,
        msg_id=transaction.message_id,
        transaction_id=transaction.message_id,
        from_transaction_check=asked.source == _CHECKED,
        topic=topic,
        bname=transaction.broker_name,
    )
    (answer,) = yield [exchange.command(RequestCode.END_TRANSACTION, header)]
    return _Response(status=status_of(answer))


def question_of(session: Session, command: Command) -> Any:
    """CHECK_TRANSACTION_STATE as a command for a producer: the half message, with the id by which it answers.
    Raises DecodeError, HeaderError."""
    header = command.header(CheckTransactionStateRequestHeader)
    (stored,) = stored_in(command.body)
    question = _Telemetry()
    asked = question.recover_orphaned_transaction_command
    asked.message.CopyFrom(Delivery(_resource(session, stored.topic)).message(stored))
    asked.transaction_id = transaction_id.text_of(
        Transaction(
            header.tran_state_table_offset,
            header.commit_log_offset,
            header.bname or "",
            stored.properties.get(props.UNIQ_KEY, header.msg_id or ""),
        )
    )
    return question


def _resource(session: Session, topic: str) -> Any:
    """A topic as its producer calls it."""
    if session.settings is not None:
        for each in session.settings.publishing.topics:
            if name_of(each) == topic:
                return each
    return _Resource(name=topic)


__all__ = ["end_transaction", "question_of"]
