"""Apache RocketMQ's settings that rmqkit itself does not read, and their effect on a start.

`PROMISES` are settings that change what a broker promises: values except the harmless ones stop the start.
`OFFERS` are settings of features that are missing: any value except the harmless ones causes a warning.
`NO_EFFECT` are settings without effect here: they are listed once at the start. A plugin that implements a
setting owns it (hook `rmqkit_register_settings`); while the plugin is loaded the setting is in neither list.
Any other key that is not one of rmqkit's settings is unknown.

Source: fields of BrokerConfig, BrokerIdentity, MessageStoreConfig, NamesrvConfig, NettyServerConfig,
NettyClientConfig and AuthConfig in versions 4.9, 5.3 and 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from attrs import frozen

from rmqkit.errors import Fault, did_you_mean

#: The beginnings of keys that are about protection. One that nothing reads is not passed over: whoever
#: misspells it believes to be protected.
_SECURITY = re.compile(r"(rmqkit)?(acl|auth|tls|ssl|sasl|initauth|innerclient|migrateauth|plainacl)")


@frozen
class Promise:
    """Values without effect, in lower case, and what the others would require."""

    harmless: tuple[str, ...]
    reason: str


_OFF = ("false", "")
_REPLICATION = (
    "the plugin ha is off or not installed: the broker is a master whose messages are on its own disk alone"
)
_OTHER_REPLICATION = (
    "this build counts copies by inSyncReplicas and minInSyncReplicas alone, and never lowers their number"
)
_DLEDGER = "this build replicates from a master to slaves, without DLedger"
_CONTROLLER = "this build has no controller: the plugin failover elects masters, see docs/failover.md"
_ACCESS = (
    "the plugin acl is off or not installed: nobody checks users and permissions. Protect the listeners in"
    " another way before you remove the setting"
)
_FILTER_SERVERS = "the plugin filter-server is off or not installed: the broker starts no filter servers"
_PROTECTION = "the plugin protection is off or not installed"
_GUARD = "this build does not have this protection"
_LITE_QUEUES = "this build has queues of lite topics, and no others that share a message"
_CRC = "this build neither writes nor checks a checksum of a message's properties"
_NAMESRV = "the name server of this build cannot do this"

#: Settings whose values, except the harmless ones, change what is promised: where messages are, how many
#: copies there are, who may do what. They stop the start.
PROMISES: dict[str, Promise] = {
    "brokerRole": Promise(("async_master",), _REPLICATION),
    "inSyncReplicas": Promise(("1",), _REPLICATION),
    "minInSyncReplicas": Promise(("1",), _REPLICATION),
    "totalReplicas": Promise(("1",), _REPLICATION),
    "allAckInSyncStateSet": Promise(_OFF, _OTHER_REPLICATION),
    "haMasterAddress": Promise(("",), _REPLICATION),
    "duplicationEnable": Promise(_OFF, _OTHER_REPLICATION),
    "enableDLegerCommitLog": Promise(_OFF, _DLEDGER),
    "enableSlaveActingMaster": Promise(_OFF, _CONTROLLER),
    "enableRemoteEscape": Promise(_OFF, _CONTROLLER),
    "enableControllerMode": Promise(_OFF, _CONTROLLER),
    "enableControllerInNamesrv": Promise(_OFF, _CONTROLLER),
    "aclEnable": Promise(_OFF, _ACCESS),
    "authenticationEnabled": Promise(_OFF, _ACCESS),
    "authorizationEnabled": Promise(_OFF, _ACCESS),
    "fetchNameSrvAddrByDnsLookup": Promise(
        _OFF, "this build looks name servers up by HTTP alone: set fetchNamesrvAddrByAddressServer = true"
    ),
    "fetchNamesrvAddrByAddressServer": Promise(
        _OFF, "the plugin registration is off or not installed: no name server is told of the broker"
    ),
    "rejectPullConsumerEnable": Promise(_OFF, _GUARD),
    "startAcceptSendRequestTimeStamp": Promise(("0",), _GUARD),
    "litePullMessageEnable": Promise(("true",), _GUARD),
    "storeType": Promise(
        ("default",), "this build chooses its store with the setting store: mmap, lmdb or memory"
    ),
    "messageStorePlugIn": Promise(("",), "this build takes plugins written in Python, see docs/plugins.md"),
    "readOnlyCommitLogStorePaths": Promise(
        ("",), "this build keeps its log in one directory, storePathCommitLog"
    ),
    "enabledAppendPropCRC": Promise(_OFF, _CRC),
    "forceVerifyPropCRC": Promise(_OFF, _CRC),
    "enableTopicList": Promise(("true",), _NAMESRV),
    "socksProxyConfig": Promise(("{}", ""), "this build connects directly, without a proxy"),
}

#: Settings whose values, except the harmless ones, ask for something that is merely off here. They are warned
#: of.
OFFERS: dict[str, Promise] = {
    "enableAutoInSyncReplicas": Promise(_OFF, _OTHER_REPLICATION),
    "controllerAddr": Promise(("",), _CONTROLLER),
    "fetchControllerAddrByDnsLookup": Promise(_OFF, _CONTROLLER),
    "supportActingMaster": Promise(_OFF, _CONTROLLER),
    "notifyMinBrokerIdChanged": Promise(_OFF, _CONTROLLER),
    "isBrokerContainer": Promise(_OFF, "this build runs several brokers with --brokers N"),
    "isInBrokerContainer": Promise(_OFF, "this build runs several brokers with --brokers N"),
    "filterServerNums": Promise(("0",), _FILTER_SERVERS),
    "disableConsumeIfConsumerReadSlowly": Promise(_OFF, _PROTECTION),
    "coldCtrStrategyEnable": Promise(_OFF, _PROTECTION),
    "coldDataFlowControlEnable": Promise(_OFF, _PROTECTION),
    "enableNetWorkFlowControl": Promise(_OFF, _GUARD),
    "enableLmq": Promise(_OFF, _LITE_QUEUES),
    "enableMultiDispatch": Promise(_OFF, _LITE_QUEUES),
    "defaultMessageRequestMode": Promise(("pull",), "the plugin pop is off or not installed"),
    "metricsExporterType": Promise(("disable", ""), "this build exports metrics to Prometheus alone (PROM)"),
    "msgTraceTopicName": Promise(
        ("rmq_sys_trace_topic",), "this build has the trace topic RMQ_SYS_TRACE_TOPIC, see traceTopicEnable"
    ),
    "clusterTest": Promise(_OFF, _NAMESRV),
    "needWaitForService": Promise(_OFF, _NAMESRV),
}

#: Reason why settings have no effect -> their keys.
NO_EFFECT: dict[str, tuple[str, ...]] = {
    reason: tuple(keys.split())
    for reason, keys in {
        "the plugin that owns them is off or not installed": (
            """
            messageDelayLevel flushDelayOffsetInterval registerNameServerPeriod registerBrokerTimeoutMills
            fetchNamesrvAddrInterval consumerFallbehindThreshold brokerFastFailureEnable
            waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue
            waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue waitTimeMillsInAckQueue
            waitTimeMillsInAdminBrokerQueue
            usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold accessMessageInMemoryHotRatio
            fileReservedTime deleteWhen diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
            diskSpaceWarningLevelRatio cleanFileForciblyEnable cleanResourceInterval
            deleteCommitLogFilesInterval deleteFileBatchMax scanNotActiveBrokerInterval kvConfigPath
            orderMessageEnable enableAllTopicList returnOrderTopicConfigToBroker
            deleteTopicWithBrokerRegistration metricsPromExporterHost
            metricsPromExporterPort metricsLabel flushIntervalCommitLog flushCommitLogLeastPages
            flushCommitLogThoroughInterval commitIntervalCommitLog commitCommitLogLeastPages
            commitCommitLogThoroughInterval brokerIP2 haListenPort haSendHeartbeatInterval
            haHousekeepingInterval haTransferBatchSize haMaxGapNotInSync slaveTimeout haFlowControlEnable
            maxHaTransferByteInSecond syncFromLastFile mappedFileSizeConsumeQueue enableConsumeQueueExt
            mappedFileSizeConsumeQueueExt maxHashSlotNum maxIndexNum
            enablePropertyFilter filterSupportRetry enableCalcFilterBitMap filterDataCleanTimeSpan
            expectConsumerNumUseFilter maxErrorRateOfBloomFilter
            maxLmqConsumeQueueNum maxLiteSubscriptionCount liteSubscriptionCheckTimeoutMills
            liteTtlCheckInterval minLiteTTl
            reviveQueueNum enableRetryTopicV2 retrieveMessageFromPopRetryTopicV1 popFromRetryProbability
            popFromRetryProbabilityForPriority priorityOrderAsc defaultPopShareQueueNum
            timerWheelEnable timerPrecisionMs timerMaxDelaySec timerRollWindowSlot timerFlushIntervalMs
            timerStopEnqueue timerStopDequeue timerCongestNumEachSlot mappedFileSizeTimerLog
            recallMessageEnable allowRecallWhenBrokerNotWriteable
            """
        ),
        "one event loop does the work of thread pools, their queues and their locks": (
            """
            sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
            litePullMessageThreadPoolNums ackMessageThreadPoolNums processReplyMessageThreadPoolNums
            queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
            consumerManageThreadPoolNums loadBalanceProcessorThreadPoolNums heartbeatThreadPoolNums
            recoverThreadPoolNums endTransactionThreadPoolNums sendThreadPoolQueueCapacity
            putThreadPoolQueueCapacity pullThreadPoolQueueCapacity litePullThreadPoolQueueCapacity
            ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
            clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
            heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity
            adminBrokerThreadPoolQueueCapacity loadBalanceThreadPoolQueueCapacity
            clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity
            defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity batchDispatchRequestThreadPoolNums
            compactionThreadNum dispatchCqThreads dispatchCqCacheNum recoverConcurrently asyncSendEnable
            maxAsyncPutMessageRequests putMessageTimeout useReentrantLockWhenPutMessage topicQueueLockNum
            spinLockCollisionRetreatOptimalDegree useABSLock debugLockEnable lockInStrictMode
            dispatchFromSenderThread enableAsyncReput enableBuildConsumeQueueConcurrently
            """
        ),
        "sockets and buffers are the system's and Python's": (
            """
            serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
            serverOnewaySemaphoreValue serverAsyncSemaphoreValue
            serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark
            serverSocketBacklog serverNettyWorkerGroupEnable serverPooledByteBufAllocatorEnable
            enableShutdownGracefully shutdownWaitTimeSeconds useEpollNativeSelector clientWorkerThreads
            clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
            connectTimeoutMillis channelNotActiveInterval isScanAvailableNameSrv
            clientChannelMaxIdleTimeSeconds clientSocketSndBufSize clientSocketRcvBufSize
            clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout disableCallbackExecutor
            disableNettyWorkerGroup maxReconnectIntervalTimeSeconds enableReconnectForGoAway
            transferMsgByHeap enableFastChannelEventProcess printChannelGroups printChannelGroupsMinNum
            highSpeedMode
            """
        ),
        "files are mapped, flushed, recovered and deleted in this build's own way": (
            """
            maxRecoveryCommitlogFiles flushCommitLogTimed flushIntervalConsumeQueue
            deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval
            putMsgIndexHightWater checkCRCOnRecover flushLeastPagesWhenWarmMapedFile
            flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval messageIndexSafe
            warmMapedFileEnable diskFallRecorded fastFailIfNoBufferInStorePool
            writeWithoutMmap maxBatchDeleteFilesNum recheckReputOffsetFromCq enableRunningFlagsInFlush
            travelCqFileNumWhenGetMessage correctLogicMinOffsetSleepInterval
            correctLogicMinOffsetForceInterval mappedFileSwapEnable commitLogForceSwapMapInterval
            commitLogSwapMapInterval commitLogSwapMapReserveFileNum logicQueueForceSwapMapInterval
            logicQueueSwapMapInterval cleanSwapedMapInterval logicQueueSwapMapReserveFileNum
            searchBcqByCacheEnable wakeCommitWhenPutMessage wakeFlushWhenPutMessage enableCleanExpiredOffset
            maxChecksumRange replicasPerDiskPartition logicalDiskSpaceCleanForciblyThreshold
            maxConsumeQueueScan sampleCountThreshold readUnCommitted
            putConsumeQueueDataByFileChannel enableAcceleratedRecovery
            enableLogConsumeQueueRepeatedlyBuildWhenRecover mapperFileSizeBatchConsumeQueue
            bitMapLengthConsumeQueueExt maxTopicLength
            autoMessageVersionOnTopicLen defaultQueryMaxNum maxMsgsNumBatch pullBatchMaxMessageCount
            maxDelayTime
            """
        ),
        (
            "messages count as cold by their distance from the end of the log alone, and the device is told"
            " what a reader needs next"
        ): "coldDataScanEnable sampleSteps timerColdDataCheckIntervalMs dataReadAheadEnable",
        (
            "an append is one step of the loop, so nothing can see that it takes long while it does; sends"
            " that were read before it and waited for longer than waitTimeMillsInSendQueue are refused"
        ): "osPageCacheBusyTimeOutMills",
        "this build has no controller, and replicates in one way alone": (
            """
            haSlaveFallbehindMax offsetCheckInSlave haMaxTimeSlaveNotCatchup
            syncMasterFlushOffsetWhenStartup maxSlaveResendLength asyncLearner dLegerGroup dLegerPeers
            dLegerSelfId
            preferredLeaderId enableBatchPush isEnableBatchPush storePathDLedgerCommitLog storePathEpochFile
            storePathBrokerIdentity skipPreOnline forwardTimeout consumerOffsetUpdateVersionStep
            delayOffsetUpdateVersionStep compatibleWithOldNameSrv syncBrokerMetadataPeriod
            checkSyncStateSetPeriod syncControllerMetadataPeriod controllerHeartBeatTimeoutMills
            brokerElectionPriority syncBrokerMemberGroupPeriod brokerHeartbeatInterval
            brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis cleanOfflineBrokerInterval
            """
        ),
        "the plugin transaction is off or not installed: the broker refuses transactional messages": (
            """
            rejectTransactionMessage transactionTimeOut transactionCheckMax transactionCheckInterval
            transactionOpMsgMaxSize transactionOpBatchInterval
            """
        ),
        "delayed and timed messages are delivered in one way alone: in order, and until that succeeds": (
            """
            timerGetMessageThreadNum timerPutMessageThreadNum timerEnableDisruptor timerEnableCheckMetrics
            timerInterceptDelayLevel disappearTimeAfterStart timerCheckMetricsWhen timerSkipUnknownError
            timerWarmEnable timerEnableRetryUntilSuccess timerMetricSmallThreshold
            timerProgressLogIntervalMs enableScheduleMessageStats
            enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
            scheduleAsyncDeliverMaxResendNum2Blocked
            """
        ),
        "leases are kept in the log and in memory, without buffers, threads or RocksDB": (
            """
            popReviveConcurrency
            popReviveSkipIfGroupAbsent useSeparateRetryQueue useMessageFilterForNotification
            maxMessageFilterNumForNotification popPollingSize popPollingMapSize
            popPollingMapExpireTimeSeconds maxPopPollingSize reviveInterval reviveMaxSlow reviveScanTime
            enableSkipLongAwaitingAck reviveAckWaitMs enablePopLog enablePopBufferMerge popCkStayBufferTime
            popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize enablePopBatchAck
            popLongPollingForceNotifyInterval enableNotifyBeforePopCalculateLag
            enableNotifyAfterPopOrderLockRelease initPopOffsetByCheckMsgInMem popConsumerFSServiceInit
            popConsumerKVServiceLog popConsumerKVServiceInit popConsumerKVServiceEnable
            popReviveMaxReturnSizePerRead popReviveMaxAttemptTimes popResponseReturnActualRetryTopic
            popInflightMessageThreshold enablePopMessageThreshold skipWhenCKRePutReachMaxTimes
            appendAckAsync appendCkAsync serverLoadBalancerEnable loadBalancePollNameServerInterval
            """
        ),
        "this build has no RocksDB, no compaction, and wakes the clients of lite topics at once": (
            """
            enableLiteEventMode liteEventCheckInterval liteSubscriptionCheckInterval
            enableLitePopLog maxClientEventCount liteEventFullDispatchDelayTime
            liteEventFullDispatchDelayTimeForWildcardGroup liteLagLatencyCollectEnable
            liteLagLatencyMetricsEnable liteLagCountMetricsEnable liteLagLatencyTopK
            transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
            transactionCheckRocksdbQueueCapacity useSingleRocksDBForAllConfigs
            cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs
            realTimePersistRocksDBConfig enableRocksDBLog rocksdbCQDoubleWriteEnable combineCQLoadingCQTypes
            combineCQPreferCQType combineAssignOffsetCQType combineCQEnableCheckSelf
            combineCQMaxExtraSearchCommitLogFiles bottomMostCompressionTypeForConsumeQueueStore
            rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
            configManagerVersion enableCompaction compactionMappedFileSize compactionCqMappedFileSize
            compactionScheduleInternal maxOffsetMapSize enableLmqStats
            """
        ),
        "this build has statistics, metrics and logs of its own": (
            """
            metricsExportBatchMaxDataPoints
            commercialEnable commercialBaseCount commercialSizePerMsg commercialTimerCount
            commercialTransCount commercialBigCount accountStatsEnable accountStatsPrintZeroValues
            maxStatsIdleTimeInMinutes enableDetailStat autoDeleteUnusedStats isolateLogEnable
            metricsOtelCardinalityLimit metricsGrpcExporterTarget metricsGrpcExporterHeader
            metricGrpcExporterTimeOutInMills metricGrpcExporterIntervalInMills
            metricLoggingExporterIntervalInMills metricsInDelta enableRemotingMetrics
            enableMessageStoreMetrics enablePopMetrics enableConnectionMetrics enableTransactionMetrics
            enableStatsMetrics enableRequestMetrics enableLagAndDlqMetrics estimateAccumulation
            flushConsumerOffsetHistoryInterval transactionMetricFlushInterval
            """
        ),
        "access control keeps all users and policies in memory, or the plugin acl is off": (
            """
            configName clusterName authConfigPath authenticationProvider authenticationMetadataProvider
            authenticationStrategy authenticationWhitelist initAuthenticationUser
            innerClientAuthenticationCredentials authorizationProvider authorizationMetadataProvider
            authorizationStrategy authorizationWhitelist migrateAuthFromV1Enabled userCacheMaxNum
            userCacheExpiredSecond userCacheRefreshSecond aclCacheMaxNum aclCacheExpiredSecond
            aclCacheRefreshSecond statefulAuthenticationCacheMaxNum statefulAuthenticationCacheExpiredSecond
            statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond
            """
        ),
        "this build registers, and keeps topics and groups, in one way alone": (
            """
            persistConsumerOffsetIncrementally
            rocketmqHome brokerConfigPath configStorePath productEnvName waitSecondsForService
            updateNameServerAddrPeriod forceRegister compressedRegister
            enableSingleTopicRegister enableSplitRegistration splitRegistrationSize enableSplitMetadata
            splitMetadataSize storeReplyMessageEnable validateSystemTopicWhenUpdateTopic
            clearRetryTopicWhenDeleteTopic useStaticSubscription subscriptionExpiredTimeout
            realTimeNotifyConsumerChange enableBroadcastOffsetStore broadcastOffsetExpireSecond
            broadcastOffsetExpireMaxSecond enableRegisterProducer enableCreateSysGroup
            """
        ),
    }.items()
}


_SEPARATORS: Final = str.maketrans("", "", "._-")


@lru_cache(maxsize=4096)
def bare(key: str) -> str:
    """A key without case, dots, hyphens and underscores, to recognise other spellings (TOML, environment
    names)."""
    return key.translate(_SEPARATORS).lower()


_ALL = (*PROMISES, *OFFERS, *(key for keys in NO_EFFECT.values() for key in keys))
#: Every key of both lists, by its bare form.
KEYS: dict[str, str] = {bare(key): key for key in _ALL}
_ENV_PREFIX = "rmqkit"


def key_of(given: str) -> str | None:
    """RocketMQ's key in any spelling; None when there is none."""
    form = bare(given)
    return KEYS.get(form) or KEYS.get(form.removeprefix(_ENV_PREFIX))


def number(unknown: Mapping[str, Any], key: str, default: int) -> int:
    """The number that a key without effect has in any spelling; the default when it is not given, or is
    none."""
    for given, value in unknown.items():
        if key_of(given) == key and re.fullmatch(r"\s*\d{1,18}\s*", str(value)):
            return int(value)
    return default


def faults(
    unknown: Mapping[str, Any], sources: Mapping[str, str], claimed: Collection[str]
) -> Iterator[Fault]:
    """Promises among the keys that no setting has, save those that plugins claimed."""
    for given, value, promise in _asked(PROMISES, unknown, claimed):
        where = sources.get(given, "default")
        yield Fault(
            given,
            f"setting {given} = {value!r} ({where}) asks for something that is not there: {promise.reason}",
        )

    for given in unknown:
        if key_of(given) is None and bare(given) not in map(bare, claimed) and _SECURITY.match(bare(given)):
            hint = did_you_mean(given, (*KEYS.values(), *claimed), "; there is no such setting")
            yield Fault(
                given,
                f"setting {given} ({sources.get(given, 'default')}) seems to ask for protection, and nothing"
                f" reads it{hint}",
            )


def offers(
    unknown: Mapping[str, Any], sources: Mapping[str, str], claimed: Collection[str]
) -> Iterator[Fault]:
    """Warnings of features that are missing, for which the keys ask that no setting has."""
    for given, value, promise in _asked(OFFERS, unknown, claimed):
        where = sources.get(given, "default")
        yield Fault(given, f"setting {given} = {value!r} ({where}) has no effect here: {promise.reason}")


def _asked(
    table: Mapping[str, Promise], unknown: Mapping[str, Any], claimed: Collection[str]
) -> Iterator[tuple[str, Any, Promise]]:
    for given, value in unknown.items():
        key = key_of(given)
        promise = table.get(key) if key is not None and key not in claimed else None
        if promise is not None and str(value).strip().lower() not in promise.harmless:
            yield given, value, promise


def without_effect(unknown: Iterable[str], claimed: Collection[str]) -> dict[str, list[str]]:
    """Why -> keys as they were given that have no effect, among those that no setting has and no plugin
    claimed."""
    meant = {given: key_of(given) for given in unknown}
    found = {
        reason: [given for given, key in meant.items() if key in keys and key not in claimed]
        for reason, keys in NO_EFFECT.items()
    }
    return {reason: keys for reason, keys in found.items() if keys}
