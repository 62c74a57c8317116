"""The put hook that keeps prepared messages from consumers (Java: SendMessageProcessor,
TransactionalMessageBridge.putHalfMessage)."""

from __future__ import annotations

from rmqkit.errors import PluginError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED
from rmqkit.plugin.hooks import EachPutHook
from rmqkit.plugin.request_broker import NeedsBroker, RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit_transaction.service import TransactionService
from rmqkit_transaction.settings import TransactionSettings


class KeepPrepared(EachPutHook, NeedsBroker):
    """Acts on what a producer sends as prepared, which the system flag says. Other messages with the property
    are what became of prepared ones: committed, delivered, sent back."""

    wants = claims = frozenset({props.TRANSACTION_PREPARED})

    def __init__(self) -> None:
        self._broker: RequestBroker | None = None
        self._service: TransactionService | None = None

    def open(self, broker: RequestBroker) -> None:
        service = broker.registry.services.get(TransactionService.name)
        if not isinstance(service, TransactionService):
            raise PluginError(
                f"the service {TransactionService.name} is not the one that belongs to the hook: disable the"
                " plugin that replaces it"
            )
        self._broker, self._service = broker, service
        service.begin(broker)

    def before_each(self, message: PutMessage) -> None:
        if message.sys_flag & TRANSACTION_MASK != TRANSACTION_PREPARED:
            return
        broker, service = self._broker, self._service
        assert broker is not None, "the broker is open"
        assert service is not None, "the broker is open"
        if broker.config.owned(TransactionSettings).reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"broker {broker.config.broker_name} takes no transactional messages"
                " (rejectTransactionMessage)",
            )
        # What the real message will ask for when it is committed.
        if (refusal := broker.appender.unclaimed(message.properties)) is not None:
            raise refusal
        service.store.keep(message)
