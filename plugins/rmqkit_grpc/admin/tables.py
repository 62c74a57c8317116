"""The messages of the Admin service (gRPC sheet, section 11)."""

from __future__ import annotations

MESSAGES = r"""
ChangeLogLevelRequest | level 1 LogLevel
ChangeLogLevelResponse | remark 1 s
DescribeTopicStatusRequest | deployment_name 1 s? | topic 2 Resource
DescribeTopicStatusResponse | status 1 Status | topic_message_type 2 MessageType | description 3 s? \
    | create_timestamp 4 T? | tags 5 map
ListSubscriptionRequest | deployment_name 1 s? | topic 2 Resource? | group 3 Resource?
SubscriptionInfo | group 1 Resource | topic 2 Resource | expression 3 FilterExpression | online 4 B \
    | last_update_timestamp 5 T | message_model 6 MessageModel | subscription_consistency 7 B
ListSubscriptionResponse | status 1 Status | subscription_info 2 SubscriptionInfo*
DescribeSubscriptionRequest | deployment_name 1 s? | topic 2 Resource? | group 3 Resource?
ClientSubscriptionInfo | client_info 1 ClientInfo | subscription_info 2 SubscriptionInfo
DescribeSubscriptionResponse | status 1 Status | client_subscription_info 2 ClientSubscriptionInfo*
DeleteSubscriptionRequest | deployment_name 1 s? | topic 2 Resource | group 3 Resource \
    | expression 4 FilterExpression
DeleteSubscriptionResponse | status 1 Status
ClientInfo | client_id 1 s | version 2 s | language 3 s | hostname 4 s | egress_ip 5 s \
    | message_model 6 MessageModel
MessageQueueItem | message_queue 1 MessageQueue | process_queue_info 2 ProcessQueueInfo
ProcessQueueInfo | commit_offset 1 l | cached_msg_min_offset 2 l | cached_msg_max_offset 3 l \
    | cached_msg_count 4 i | cached_msg_size_in_mib 5 i | transaction_msg_min_offset 6 l \
    | transaction_msg_max_offset 7 l | transaction_msg_count 8 i | locked 9 B | try_unlock_times 10 l \
    | last_lock_timestamp 11 l | dropped 12 B | last_pull_timestamp 13 l | last_consume_timestamp 14 l
ConsumeStatus | receive_rt 1 d | receive_tps 2 d | consume_rt 3 d | consume_ok_tps 4 d \
    | consume_failed_tps 5 d | consume_failed_msgs 6 l
ConsumerRunningInfo | properties 1 map | subscriptions 2 map:FilterExpression \
    | message_queue_table 3 MessageQueueItem* | consume_status_table 4 map:ConsumeStatus
DescribeGroupAccumulationRequest | deployment_name 1 s? | group 2 Resource | topics 3 Resource* \
    | lite_topic 4 s?
GroupAccumulation | inflight_messages 1 l | ready_messages 2 l | accumulation 3 l \
    | deliver_delay_time 4 D | last_consume_timestamp 5 l
DescribeGroupAccumulationResponse | status 1 Status | accumulation 2 GroupAccumulation \
    | topic_accumulation 3 map:GroupAccumulation | lite_topic_accumulation 4 map:GroupAccumulation
QueryTimeSpanRequest | deployment_name 1 s? | group 2 Resource | topics 3 Resource*
QueueTimeSpan | message_queue 1 MessageQueue | min_timestamp 2 l | max_timestamp 3 l \
    | consume_timestamp 4 l | delay_time_ms 5 l
QueryTimeSpanResponse | status 1 Status | queue_time_span_list 2 QueueTimeSpan*
ListConsumerConnectionRequest | deployment_name 1 s? | group 2 Resource | topic 3 Resource? | liteTopic 4 s?
ListConsumerConnectionResponse | status 1 Status | client_info 2 ClientInfo*
ResetGroupOffsetRequest | deployment_name 1 s? | group 2 Resource | topic 3 Resource | reset_timestamp 4 T
ResetGroupOffsetResponse | status 1 Status
ListMessageRequest | deployment_name 1 s? | topic 2 Resource | max_message_nums 3 i | begin_timestamp 4 T \
    | end_timestamp 5 T | message_id 6 s /search_key | message_key 7 s /search_key \
    | subscription 8 s /search_key | lite_topic 14 s /search_key | scroll_id 9 s? | page_num 10 i? \
    | page_size 11 i? | broker_name 12 s? | queue_id 13 i?
ListMessageResponse | status 1 Status | messages 2 Message* | scroll_id 3 s
PrintThreadStackTraceRequest | deployment_name 1 s? | client_id 2 s | group 3 Resource
PrintThreadStackTraceResponse | status 1 Status | thread_stack_trace 2 s?
VerifyMessageRequest | deployment_name 1 s? | client_id 2 s | group 3 Resource | topic 4 Resource \
    | message_id 5 s
VerifyMessageResponse | status 1 Status
AdminSendMessageRequest | deployment_name 1 s? | topic 2 Resource | tag 3 s? | key 4 s? | body 5 b \
    | user_properties 6 map | system_properties 7 SystemProperties? | ext_info 8 map
AdminSendMessageResponse | status 1 Status | message_id 2 s
GetConsumerRunningInfoRequest | deployment_name 1 s? | group 2 Resource | client_id 3 s
GetConsumerRunningInfoResponse | status 1 Status | consumer_running_info 2 ConsumerRunningInfo
GetTopicRouteRequest | deployment_name 1 s? | topic 2 Resource | network_type 3 NetworkType \
    | protocol_type 4 s | stream_request_type 5 B | client_address 6 s
GetTopicRouteResponse | status 1 Status | topic_route_data 2 s
GetProxyRuntimeStatsRequest
GetProxyRuntimeStatsResponse | status 1 Status | proxy_name 2 s | version 3 s | in_tps 4 d | out_tps 5 d \
    | connections 6 l | producers 7 l | consumers 8 l
"""
ENUMS = r"""
LogLevel | TRACE 0 | DEBUG 1 | INFO 2 | WARN 3 | ERROR 4
NetworkType | INTERNAL 0 | INTERNET 1 | INTRANET 2
MessageModel | MESSAGE_MODEL_UNSPECIFIED 0 | CLUSTERING 1 | BROADCASTING 2 | LITE_SELECTIVE 3
"""
SERVICE = r"""
Admin \
    | ChangeLogLevel ChangeLogLevelRequest ChangeLogLevelResponse \
    | DescribeTopicStatus DescribeTopicStatusRequest DescribeTopicStatusResponse \
    | ListSubscription ListSubscriptionRequest ListSubscriptionResponse \
    | DescribeSubscription DescribeSubscriptionRequest DescribeSubscriptionResponse \
    | DeleteSubscription DeleteSubscriptionRequest DeleteSubscriptionResponse \
    | DescribeGroupAccumulation DescribeGroupAccumulationRequest DescribeGroupAccumulationResponse \
    | ListConsumerConnection ListConsumerConnectionRequest ListConsumerConnectionResponse \
    | ResetGroupOffset ResetGroupOffsetRequest ResetGroupOffsetResponse \
    | QueryMessage ListMessageRequest ListMessageResponse \
    | PrintThreadStackTrace PrintThreadStackTraceRequest PrintThreadStackTraceResponse \
    | VerifyMessage VerifyMessageRequest VerifyMessageResponse \
    | AdminSendMessage AdminSendMessageRequest AdminSendMessageResponse \
    | GetConsumerRunningInfo GetConsumerRunningInfoRequest GetConsumerRunningInfoResponse \
    | GetTopicRoute GetTopicRouteRequest GetTopicRouteResponse \
    | QueryTimeSpan QueryTimeSpanRequest QueryTimeSpanResponse \
    | GetProxyRuntimeStats GetProxyRuntimeStatsRequest GetProxyRuntimeStatsResponse
"""
