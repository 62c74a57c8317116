"""The contracts of services and request processors over those of the built-in plugins, and a test that every
thing which these plugins register runs the contract of its kind."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any, cast

import pytest

from rmqkit import hookimpl
from rmqkit.config import Config, load
from rmqkit.model import names
from rmqkit.model.message import Appended
from rmqkit.model.route import TopicRouteData
from rmqkit.model.run import MessageRun
from rmqkit.plugin import loader
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import REMOTING, RequestProcessor
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    EndTransactionRequestHeader,
    GetRouteInfoRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    RegisterFilterServerRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.protocol.recall_handle import RecallHandle
from rmqkit.testing.processor import ProcessorContract
from rmqkit.testing.service import ServiceContract
from rmqkit.testing.store import message
from rmqkit_delay.levels import parse_levels
from rmqkit_delay.service import DelayService
from rmqkit_delay.settings import DelaySettings
from rmqkit_failover.coordinators import connected
from rmqkit_failover.service import FailoverService
from rmqkit_filter_server.processes import FilterServerProcesses
from rmqkit_filter_server.registered import RegisteredFilterServers
from rmqkit_grpc.routes import RouteProcessor
from rmqkit_grpc.service import GrpcService
from rmqkit_ha.master import HaMaster
from rmqkit_ha.replicas import Replicas
from rmqkit_ha.slave import HaSlave
from rmqkit_hook_audit.service import AuditService
from rmqkit_hook_audit.settings import AuditSettings
from rmqkit_hook_metrics.service import MetricsService
from rmqkit_hook_metrics.settings import MetricsSettings
from rmqkit_pop.lite.service import LiteService
from rmqkit_pop.plugin import engine_of, lites_of
from rmqkit_pop.service import PopService
from rmqkit_protection.cold_reads import ColdReads
from rmqkit_protection.service import SlowConsumers
from rmqkit_protection.water_marks import WaterMarks
from rmqkit_registration.service import RegistrationService
from rmqkit_retention.processor import CODES, CleanProcessor
from rmqkit_retention.service import RetentionService
from rmqkit_timer.checkpoint import Checkpoint
from rmqkit_timer.copying import CheckpointAnswers, CountsAnswers
from rmqkit_timer.counts import Counts as TimerCounts
from rmqkit_timer.park import ParkTimed
from rmqkit_timer.recalls import RecallProcessor
from rmqkit_timer.repeating import Repeating
from rmqkit_timer.service import TimerService
from rmqkit_transaction.ending import EndTransaction
from rmqkit_transaction.resuming import ResumeCheck
from rmqkit_transaction.service import TransactionService
from tests.hooks import test_contracts as hooks
from tests.plugins import test_contracts as plugins
from tests.plugins.allocation import test_strategies as strategies
from tests.plugins.console import test_commands as console_commands
from tests.plugins.console import test_service as console
from tests.plugins.dedup import test_contracts as dedup
from tests.plugins.failover import test_commands as failover_commands
from tests.plugins.filter import test_python as python_filters
from tests.plugins.filter import test_sql92 as sql92
from tests.plugins.filter import test_tag as tags
from tests.plugins.filter.index import test_filters as filter_index
from tests.plugins.grpc import test_protocol as grpc_protocol
from tests.plugins.grpc import test_proxy as grpc_proxy
from tests.plugins.ha import test_group as electing
from tests.plugins.protection import test_cold_reads as cold_reads
from tests.plugins.protection import test_fast_failure as fast_failure
from tests.plugins.transaction.state_table import test_follower as state_follower
from tests.stores.lmdb import test_store as test_lmdb
from tests.stores.memory import test_store as test_memory
from tests.stores.mmap import test_store as test_mmap
from tests.stores.tools import test_contract as store_tools
from tests.transports.memory import test_memory as pipes
from tests.transports.quic import test_transport as quic
from tests.transports.tcp import test_tcp as tcp
from tests.transports.tls import test_contract as tls
from tests.transports.unix import test_unix as unix


class TestRetention(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "retention"}

    def make_service(self, config: Config) -> Service:
        return RetentionService(config)


class TestProtection(ServiceContract):
    def make_service(self, config: Config) -> Service:
        return SlowConsumers()


class TestColdReads(ServiceContract):
    def make_service(self, config: Config) -> Service:
        return ColdReads()


class TestWaterMarks(ServiceContract):
    def make_service(self, config: Config) -> Service:
        return WaterMarks()


class TestDelay(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "delay"}

    def make_service(self, config: Config) -> Service:
        return DelayService(parse_levels(config.owned(DelaySettings).message_delay_level))


class TestTimers(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "timer"}

    def make_service(self, config: Config) -> Service:
        return TimerService()


class TestFilterServers(ServiceContract):
    """No process is started."""

    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "filter-server"}

    def make_service(self, config: Config) -> Service:
        return FilterServerProcesses()


class TestRegistration(ServiceContract):
    """The name server that is named does not answer."""

    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "registration", "namesrvAddr": "127.0.0.1:1"}

    def make_service(self, config: Config) -> Service:
        return RegistrationService()


class TestHaMaster(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {
            "disabledServices": "ha-master",
            "brokerRole": "ASYNC_MASTER",
            "plugins.ha.listen": "memory://127.0.0.1:0",
        }

    def make_service(self, config: Config) -> Service:
        return HaMaster()

    def assembled(self, service: HaMaster, broker: Broker) -> None:
        service.begin(broker, Replicas())


class TestHaSlave(ServiceContract):
    """The master that is named does not answer."""

    def settings(self) -> dict[str, Any]:
        return {
            "disabledServices": "ha-slave",
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": "127.0.0.1:1",
            "plugins.ha.masterAddress": "127.0.0.1:1",
        }

    def make_service(self, config: Config) -> Service:
        return HaSlave()


class TestFailover(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {
            "disabledServices": "failover",
            "brokerRole": "SYNC_MASTER",
            "plugins.ha.elected": True,
            "plugins.ha.memberName": "a",
            "plugins.ha.listen": "memory://127.0.0.1:0",
            "plugins.failover.coordinator": "memory://contract",
        }

    def make_service(self, config: Config) -> Service:
        return FailoverService(connected)


class TestAudit(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"hooks": "audit", "disabledServices": "audit"}

    def make_service(self, config: Config) -> Service:
        return AuditService(AuditSettings())

    def assembled(self, service: AuditService, broker: Broker) -> None:
        service.begin(broker)


class TestMetrics(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"hooks": "metrics", "disabledServices": "metrics", "metricsPromExporterPort": 0}

    def make_service(self, config: Config) -> Service:
        return MetricsService(MetricsSettings())

    def assembled(self, service: MetricsService, broker: Broker) -> None:
        service.begin(broker)


class TestPop(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "pop"}

    def make_service(self, config: Config) -> Service:
        return PopService()

    def assembled(self, service: PopService, broker: Broker) -> None:
        service.engine = engine_of(cast("RequestBroker", broker))


class TestLite(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "lite"}

    def make_service(self, config: Config) -> Service:
        return LiteService()

    def assembled(self, service: LiteService, broker: Broker) -> None:
        serving = cast("RequestBroker", broker)
        service.lites = lites_of(serving, engine_of(serving))


class TestGrpc(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "grpc", "plugins.grpc.listen": "memory://127.0.0.1:0"}

    def make_service(self, config: Config) -> Service:
        return GrpcService()


class TestRoutes(ProcessorContract):
    """For clients of remoting, in place of those of gRPC."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC

    def settings(self) -> dict[str, Any]:
        return {"disabledPlugins": "grpc"}

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        return RouteProcessor(broker, REMOTING)

    def good(self) -> Command:
        return request(self.code, GetRouteInfoRequestHeader(topic="Topic"))

    def check(self, answer: Command) -> None:
        (queues,) = answer.decode_body(TopicRouteData).queue_datas
        assert queues.read_queue_nums == 4


class TestTransaction(ServiceContract):
    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "transaction"}

    def make_service(self, config: Config) -> Service:
        return TransactionService()

    def assembled(self, service: TransactionService, broker: Any) -> None:
        service.begin(broker)


class TestEndTransaction(ProcessorContract):
    """An outcome that is not known yet."""

    code = RequestCode.END_TRANSACTION

    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "transaction"}

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        return EndTransaction(broker, loaded(broker))

    def good(self) -> Command:
        header = EndTransactionRequestHeader(
            producer_group="p", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=0
        )
        return request(self.code, header)


class TestResumeCheck(ProcessorContract):
    """Each time another message that was given up."""

    code = RequestCode.RESUME_CHECK_HALF_MESSAGE

    def settings(self) -> dict[str, Any]:
        return {"disabledServices": "transaction"}

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        self._broker = broker
        return ResumeCheck(broker, loaded(broker))

    def good(self) -> Command:
        properties = {"REAL_TOPIC": "T", "REAL_QID": "0"}
        given_up = message(names.CHECK_MAX_TIME_TOPIC, 0, b"x")
        given_up.set_properties(properties)
        (at,) = self._broker.appender.append(MessageRun([given_up]))
        assert isinstance(at, Appended)
        message_id = offset_message_id(self._broker.store_host, at.physical_offset)
        return request(self.code, ResumeCheckHalfMessageRequestHeader(msg_id=message_id))


def loaded(broker: RequestBroker) -> TransactionService:
    """A service that has found no open transaction."""
    service = TransactionService()
    service.begin(broker)
    service.loaded.set()
    return service


class TestDeleteExpiredLog(ProcessorContract):
    """The retention plugin is switched off, for it registers the codes itself; its service is there, but does
    not run."""

    code = RequestCode.DELETE_EXPIRED_COMMITLOG

    def settings(self) -> dict[str, Any]:
        return {"disabledPlugins": "retention"}

    def make_processor(self, broker: Broker) -> RequestProcessor:
        services = broker.registry.services
        assert isinstance(services, dict)
        services["retention"] = RetentionService(broker.config)
        return CleanProcessor(broker)

    def good(self) -> Command:
        return Command(code=self.code)


class TestRegisterFilterServer(ProcessorContract):
    code = RequestCode.REGISTER_FILTER_SERVER

    def settings(self) -> dict[str, Any]:
        return {"disabledPlugins": "filter-server"}

    def make_processor(self, broker: Broker) -> RequestProcessor:
        return RegisteredFilterServers(broker)

    def good(self) -> Command:
        return request(self.code, RegisterFilterServerRequestHeader(filter_server_addr="127.0.0.1:4000"))


class TestCleanExpiredQueues(TestDeleteExpiredLog):
    code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class TestCleanUnusedTopics(TestDeleteExpiredLog):
    code = RequestCode.CLEAN_UNUSED_TOPIC


class RunningTimers(TimerService):
    """Timers of a master, of which nothing waits."""

    def checkpoint(self) -> Checkpoint:
        return Checkpoint()

    def counts(self) -> TimerCounts:
        return TimerCounts()


class TestTimerCheckpoint(ProcessorContract):
    """The timer plugin is switched off, for it registers the codes itself."""

    code = RequestCode.GET_TIMER_CHECK_POINT

    def settings(self) -> dict[str, Any]:
        return {"disabledPlugins": "timer"}

    def make_processor(self, broker: Broker) -> RequestProcessor:
        return CheckpointAnswers(RunningTimers())

    def good(self) -> Command:
        return Command(code=self.code)


class TestTimerCounts(TestTimerCheckpoint):
    code = RequestCode.GET_TIMER_METRICS

    def make_processor(self, broker: Broker) -> RequestProcessor:
        return CountsAnswers(RunningTimers())


class _Parking:
    """Lets timed messages wait, as the plugin does that is switched off."""

    @hookimpl
    def rmqkit_register_put_message_hooks(self, register: Register[PutMessageHook], config: Config) -> None:
        register("park", ParkTimed(config))


class TestRecall(ProcessorContract):
    """The timer plugin is switched off, for it registers the code itself; its hook is there."""

    code = RequestCode.RECALL_MESSAGE

    def settings(self) -> dict[str, Any]:
        return {"disabledPlugins": "timer"}

    def plugins(self) -> list[tuple[str, object]]:
        return [("parking", _Parking())]

    def make_processor(self, broker: RequestBroker) -> RequestProcessor:
        return RecallProcessor(broker, Repeating())

    def good(self) -> Command:
        deliver_ms = time.time_ns() // 1_000_000 + 3_600_000
        handle = RecallHandle("TBW102", "broker-a", deliver_ms, "id").encode()
        return request(self.code, RecallMessageRequestHeader(topic="TBW102", recall_handle=handle or ""))

    def check(self, answer: Command) -> None:
        assert answer.header(RecallMessageResponseHeader).msg_id == "id"


#: Where the contract of each thing runs: the module, and the class or function in it.
COVERED: dict[tuple[str, str], tuple[ModuleType | None, str]] = {
    ("store", "memory"): (test_memory, "TestMemoryStore"),
    ("store", "mmap"): (test_mmap, "TestMmapStore"),
    ("store", "lmdb"): (test_lmdb, "TestLmdbStore"),
    ("store tools", "mmap"): (store_tools, "TestMmapTools"),
    ("store tools", "lmdb"): (store_tools, "TestLmdbTools"),
    ("transport", "memory"): (pipes, "TestMemory"),
    ("transport", "quic"): (quic, "TestQuic"),
    ("transport", "tcp"): (tcp, "TestTcp"),
    ("transport", "tls"): (tls, "TestTls"),
    ("transport", "unix"): (unix, "TestUnix"),
    ("flush policy", "ASYNC_FLUSH"): (plugins, "TestAsyncFlush"),
    ("flush policy", "ASYNC_FLUSH_BUFFERED"): (plugins, "TestBufferedAsyncFlush"),
    ("flush policy", "SYNC_FLUSH"): (plugins, "TestSyncFlush"),
    ("allocation strategy", "AVG"): (strategies, "check_allocation_strategy"),
    ("allocation strategy", "AVG_BY_CIRCLE"): (strategies, "check_allocation_strategy"),
    ("allocation strategy", "CONSISTENT_HASH"): (strategies, "check_allocation_strategy"),
    ("filter server", "TAG"): (tags, "check_filter_server"),
    ("filter server", "SQL92"): (sql92, "check_filter_server"),
    ("filter server", "PYTHON"): (python_filters, "check_filter_server"),
    ("filter index", "filter"): (filter_index, "check_filter_index"),
    ("service", "audit"): (None, "TestAudit"),
    ("service", "cold-reads"): (None, "TestColdReads"),
    ("service", "console"): (console, "TestContract"),
    ("service", "dedup"): (dedup, "TestService"),
    ("service", "delay"): (None, "TestDelay"),
    ("service", "failover"): (None, "TestFailover"),
    ("service", "filter-server"): (None, "TestFilterServers"),
    ("service", "grpc"): (None, "TestGrpc"),
    ("service", "ha-master"): (None, "TestHaMaster"),
    ("service", "ha-slave"): (None, "TestHaSlave"),
    ("service", "lite"): (None, "TestLite"),
    ("service", "metrics"): (None, "TestMetrics"),
    ("service", "pop"): (None, "TestPop"),
    ("service", "protection"): (None, "TestProtection"),
    ("service", "registration"): (None, "TestRegistration"),
    ("service", "retention"): (None, "TestRetention"),
    ("protocol", "grpc"): (grpc_protocol, "TestGrpc"),
    ("service", "timer"): (None, "TestTimers"),
    ("service", "transaction"): (None, "TestTransaction"),
    ("service", "water-marks"): (None, "TestWaterMarks"),
    ("server", "filter-server"): (plugins, "TestFilterServer"),
    ("server", "namesrv"): (plugins, "TestNameServer"),
    ("server", "proxy"): (grpc_proxy, "TestProxy"),
    ("send message hook", "audit"): (hooks, "TestSendAudit"),
    ("send message hook", "message-type"): (hooks, "TestCheckSends"),
    ("send message hook", "metrics"): (hooks, "TestSendMetrics"),
    ("send message hook", "trace"): (hooks, "TestSendSpans"),
    ("consume message hook", "audit"): (hooks, "TestConsumeAudit"),
    ("consume message hook", "cold-counts"): (cold_reads, "TestCounts"),
    ("consume message hook", "metrics"): (hooks, "TestConsumeMetrics"),
    ("rpc hook", "audit"): (hooks, "TestRequestAudit"),
    ("rpc hook", "cold-pulls"): (cold_reads, "TestPulls"),
    ("rpc hook", "fast-failure"): (fast_failure, "TestContract"),
    ("rpc hook", "message-type"): (hooks, "TestCheckRecalls"),
    ("rpc hook", "metrics"): (hooks, "TestRpcMetrics"),
    ("put message hook", "dedup"): (dedup, "TestHook"),
    ("put message hook", "lite"): (hooks, "TestPutLite"),
    ("put message hook", "priority"): (hooks, "TestPutByPriority"),
    ("put message hook", "delay"): (hooks, "TestParkDelayed"),
    ("put message hook", "timer"): (hooks, "TestParkTimed"),
    ("put message hook", "transaction"): (hooks, "TestKeepPrepared"),
    ("dispatcher", "transaction-states"): (state_follower, "TestStateFollower"),
    ("acknowledgement condition", "replicas"): (electing, "TestCondition"),
    ("command", "console"): (console_commands, "TestConsoleVerb"),
    ("command", "failover"): (failover_commands, "TestFailoverVerb"),
}
#: Kinds that are values rather than objects with an interface.
VALUES = {"settings", "queue code", "topic attribute"}


def test_everything_that_is_built_in_runs_the_contract_of_its_kind() -> None:
    """Every thing that a built-in plugin registers, and nothing else, is named above with its tests."""
    flags = {
        "hooks": ["audit", "metrics", "trace"],
        "brokerRole": "SYNC_MASTER",
        "enableTopicMessageTypeCheck": True,
        "coldDataFlowControlEnable": True,
        "plugins.ha.elected": True,
        "plugins.failover.coordinator": "memory://contract",
        "plugins.transaction.store": "state-table",
        "plugins.console.listen": "127.0.0.1:0",
    }
    registered = loader.load(load(environ={}, flags=flags)).registrations
    builtin = {(each.kind, each.name) for each in registered if each.kind not in VALUES}
    assert builtin == set(COVERED)


@pytest.mark.parametrize(("kind", "name"), COVERED)
def test_the_contract_is_there(kind: str, name: str) -> None:
    """The tests that are named above exist, and are those of the kind's contract."""
    module, title = COVERED[kind, name]
    found = globals()[title] if module is None else getattr(module, title)
    if isinstance(found, type):
        assert any(base.__name__.endswith("Contract") for base in found.__mro__)
    else:
        assert found.__name__.startswith("check_")


def test_every_request_of_the_plugins_runs_the_contract() -> None:
    """The request codes that built-in plugins register are those of the processors above."""
    tested = {each.code for each in (TestDeleteExpiredLog, TestCleanExpiredQueues, TestCleanUnusedTopics)}
    assert tested == set(CODES)
    timers = {each.code for each in (TestTimerCheckpoint, TestTimerCounts)}
    assert timers == {RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS}
    assert TestRecall.code == RequestCode.RECALL_MESSAGE
    assert TestRegisterFilterServer.code == RequestCode.REGISTER_FILTER_SERVER
    assert TestRoutes.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert {TestEndTransaction.code, TestResumeCheck.code} == {37, 323}
