package rmqkit.interop.admin;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Plays calls of mqadmin against a cluster with a producer and a push consumer, and prints one JSON line for each.
 *
 * <pre>AdminProgram SCENARIO[,...] NAMESRV [--threads N] --id ID</pre>
 *
 * The scenarios build on each other and are played in this order, whatever order they are named in.
 */
public final class AdminProgram {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final int MESSAGES = 12;
    private static final long PATIENCE_MS = 40_000;

    private final String namesrv;
    private final String topic;
    private final String group;
    private final Queue<String> seen = new ConcurrentLinkedQueue<>();
    private final Map<String, Callable<Map<String, Object>>> scenarios = new LinkedHashMap<>();
    private DefaultMQAdminExt admin;
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer consumer;
    private String broker;
    private String offsetMessageId;

    private AdminProgram(String namesrv, String id) {
        this.namesrv = namesrv;
        this.topic = "it_mqadmin_" + id;
        this.group = "it_mqadmin_group_" + id;
        scenarios.put("topic-list", this::topicList);
        scenarios.put("group-list", this::groupList);
        scenarios.put("attributes", this::attributes);
        scenarios.put("traffic", this::traffic);
        scenarios.put("producers", this::producers);
        scenarios.put("running-info", this::runningInfo);
        scenarios.put("consume-status", this::consumeStatus);
        scenarios.put("consume-directly", this::consumeDirectly);
        scenarios.put("consume-stats", this::consumeStats);
        scenarios.put("time-span", this::timeSpan);
        scenarios.put("query-cq", this::queryCq);
        scenarios.put("broker-stats", this::brokerStats);
        scenarios.put("runtime-info", this::runtimeInfo);
        scenarios.put("reset-online", this::resetOnline);
        scenarios.put("reset-offline", this::resetOffline);
        scenarios.put("reset-queue", this::resetQueue);
        scenarios.put("clone-offset", this::cloneOffset);
        scenarios.put("query-by-key", this::queryByKey);
        scenarios.put("consume-mode", this::consumeMode);
        scenarios.put("server-allocation", this::serverAllocation);
        scenarios.put("pop-mode", this::popMode);
        scenarios.put("broker-config", this::brokerConfig);
    }

    public static void main(String[] args) throws Exception {
        String id = "x";
        for (int i = 2; i + 1 < args.length; i += 2) {
            id = "--id".equals(args[i]) ? args[i + 1] : id;
        }
        AdminProgram program = new AdminProgram(args[1], id);
        boolean all = program.play(List.of(args[0].split(",")));
        System.exit(all ? 0 : 1);
    }

    private boolean play(List<String> wanted) throws Exception {
        admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin_" + topic);
        admin.start();
        broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
        boolean all = true;
        for (Map.Entry<String, Callable<Map<String, Object>>> scenario : scenarios.entrySet()) {
            if (!wanted.contains(scenario.getKey())) {
                continue;
            }
            long start = System.nanoTime();
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("scenario", scenario.getKey());
            Throwable failure = null;
            Map<String, Object> facts = Map.of();
            try {
                facts = scenario.getValue().call();
            } catch (Throwable e) {
                failure = e;
                all = false;
            }
            line.put("ok", failure == null);
            line.put("seconds", Math.round((System.nanoTime() - start) / 1e7) / 100.0);
            line.put("facts", facts);
            line.put("error", failure == null ? null : failure.toString() + " at " + where(failure));
            OUT.println(Json.write(line));
        }
        return all;
    }

    private static String where(Throwable failure) {
        for (StackTraceElement frame : failure.getStackTrace()) {
            if (frame.getClassName().startsWith("rmqkit.")) {
                return frame.getFileName() + ":" + frame.getLineNumber();
            }
        }
        return "?";
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void await(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000L;
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (Exception e) {
                last = e;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("not in time: " + what + (last == null ? "" : ", " + last));
    }

    private Map<String, Object> topicList() throws Exception {
        TopicConfig first = new TopicConfig(topic, 2, 2);
        first.getAttributes().put("+message.type", "NORMAL");
        admin.createAndUpdateTopicConfigList(broker, List.of(first, new TopicConfig(topic + "_b", 3, 3)));
        await("routes of both topics", () -> admin.examineTopicRouteInfo(topic) != null && admin.examineTopicRouteInfo(topic + "_b") != null);
        TopicConfig found = admin.examineTopicConfig(broker, topic);
        return Map.of("queues", found.getReadQueueNums(), "type", found.getAttributes().get("message.type"));
    }

    private Map<String, Object> groupList() throws Exception {
        SubscriptionGroupConfig first = new SubscriptionGroupConfig();
        first.setGroupName(group);
        SubscriptionGroupConfig second = new SubscriptionGroupConfig();
        second.setGroupName(group + "_b");
        second.setRetryMaxTimes(3);
        admin.createAndUpdateSubscriptionGroupConfigList(broker, List.of(first, second));
        return Map.of("retries", admin.examineSubscriptionGroupConfig(broker, group + "_b").getRetryMaxTimes());
    }

    private Map<String, Object> attributes() throws Exception {
        return Map.of("unknown", refusal("+no.such=1"), "value", refusal("+message.type=Orderly"), "fixed", refusal("+queue.type=SimpleCQ"));
    }

    private String refusal(String attribute) throws Exception {
        TopicConfig config = new TopicConfig(topic, 2, 2);
        String[] parts = attribute.split("=");
        config.getAttributes().put(parts[0], parts[1]);
        try {
            admin.createAndUpdateTopicConfig(broker, config);
        } catch (MQClientException e) {
            return e.getResponseCode() + " " + e.getErrorMessage();
        }
        return "accepted";
    }

    private Map<String, Object> traffic() throws Exception {
        producer = new DefaultMQProducer(group + "_producer");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer_" + topic);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        send(MESSAGES, "m");
        consume();
        await("all messages", () -> seen.size() >= MESSAGES);
        return Map.of("received", seen.size());
    }

    private void send(int count, String stem) throws Exception {
        for (int i = 0; i < count; i++) {
            var sent = producer.send(new Message(topic, "A", (stem + i).getBytes(StandardCharsets.UTF_8)));
            offsetMessageId = sent.getOffsetMsgId();
        }
    }

    private void consume() throws Exception {
        consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer_" + topic + "_" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private String clientId() throws Exception {
        return admin.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
    }

    private Map<String, Object> producers() throws Exception {
        var table = admin.getAllProducerInfo(broker).getData();
        var one = table.get(group + "_producer").get(0);
        return Map.of("language", one.getLanguage().toString(), "address", one.getRemoteIP().startsWith("/127.0.0.1:"));
    }

    private Map<String, Object> runningInfo() throws Exception {
        var info = admin.getConsumerRunningInfo(group, clientId(), true);
        String missing = "answered";
        try {
            admin.getConsumerRunningInfo(group, "nobody", false);
        } catch (MQClientException e) {
            missing = e.getResponseCode() + " " + e.getErrorMessage();
        }
        return Map.of("subscriptions", info.getSubscriptionSet().size(), "queues",
            info.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count(), "stacks", info.getJstack().length() > 0,
            "missing", missing.contains("not online"));
    }

    private Map<String, Object> consumeStatus() throws Exception {
        Map<String, Map<MessageQueue, Long>> status = admin.getConsumeStatus(topic, group, "");
        Map<MessageQueue, Long> offsets = status.values().iterator().next();
        return Map.of("clients", status.size(), "sum", offsets.values().stream().mapToLong(each -> each).sum());
    }

    private Map<String, Object> consumeDirectly() throws Exception {
        int before = seen.size();
        var result = admin.consumeMessageDirectly(group, clientId(), topic, offsetMessageId);
        await("the message once more", () -> seen.size() == before + 1);
        check(result.getConsumeResult() == CMResult.CR_SUCCESS, "result " + result);
        return Map.of("result", result.getConsumeResult().toString());
    }

    private Map<String, Object> consumeStats() throws Exception {
        await("commits", () -> lag() == 0);
        var all = admin.fetchConsumeStatsInBroker(broker, false, 10_000);
        long queues = all.getConsumeStatsList().stream().filter(entry -> entry.containsKey(group)).flatMap(entry -> entry.get(group).stream())
            .mapToLong(stats -> stats.getOffsetTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count()).sum();
        var stats = admin.examineConsumeStats(group, topic);
        long pulled = stats.getOffsetTable().values().stream().mapToLong(offsets -> offsets.getPullOffset()).sum();
        return Map.of("queues", queues, "pulled", pulled, "tps", stats.getConsumeTps() > 0);
    }

    private long lag() throws Exception {
        return admin.examineConsumeStats(group, topic).getOffsetTable().values().stream()
            .mapToLong(offsets -> offsets.getBrokerOffset() - offsets.getConsumerOffset()).sum();
    }

    private Map<String, Object> timeSpan() throws Exception {
        var spans = admin.queryConsumeTimeSpan(topic, group);
        return Map.of("queues", spans.size(), "timed", spans.stream().allMatch(span -> span.getMinTimeStamp() <= span.getMaxTimeStamp()));
    }

    private Map<String, Object> queryCq() throws Exception {
        var body = admin.queryConsumeQueue(broker, topic, 0, 0, 100, group);
        return Map.of("units", body.getQueueData().size() == body.getMaxQueueIndex(), "tags", body.getQueueData().get(0).getTagsCode(),
            "subscription", body.getSubscriptionData().getSubString());
    }

    private Map<String, Object> brokerStats() throws Exception {
        var put = admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic);
        var got = admin.viewBrokerStatsData(broker, "GROUP_GET_NUMS", topic + "@" + group);
        return Map.of("put", put.getStatsDay().getSum(), "got", got.getStatsDay().getSum(), "tps", put.getStatsMinute().getTps() > 0);
    }

    private Map<String, Object> runtimeInfo() throws Exception {
        var table = admin.fetchBrokerRuntimeStats(broker).getTable();
        long age = System.currentTimeMillis() - Long.parseLong(table.get("earliestMessageTimeStamp"));
        return Map.of("recent", age >= 0 && age < 3_600_000, "rates", table.get("putTps").split(" ").length, "put",
            Long.parseLong(table.get("msgPutTotalTodayNow")) >= MESSAGES, "latency", Double.parseDouble(table.get("putLatency99")) >= 0);
    }

    /** Everything is delivered a second time to a consumer that stays online. */
    private Map<String, Object> resetOnline() throws Exception {
        seen.clear();
        var offsets = admin.resetOffsetByTimestamp(topic, group, 0, true);
        await("all messages again", () -> seen.size() >= MESSAGES);
        return Map.of("queues", offsets.size(), "again", seen.stream().distinct().count());
    }

    /** skipAccumulatedMessage for a group without members: what was sent meanwhile is not delivered. */
    private Map<String, Object> resetOffline() throws Exception {
        await("commits", () -> lag() == 0);
        consumer.shutdown();
        await("nobody online", () -> {
            try {
                admin.examineConsumerConnectionInfo(group);
                return false;
            } catch (MQBrokerException e) {
                return true;
            }
        });
        seen.clear();
        send(4, "skipped");
        admin.resetOffsetByTimestamp(topic, group, -1, true);
        send(3, "after");
        consume();
        await("what came after", () -> seen.size() >= 3);
        return Map.of("received", seen.size(), "skipped", seen.stream().filter(text -> text.startsWith("skipped")).count());
    }

    private Map<String, Object> resetQueue() throws Exception {
        await("commits", () -> lag() == 0);
        consumer.shutdown();
        admin.resetOffsetByQueueId(broker, group, topic, 1, 2);
        var stats = admin.examineConsumeStats(group, topic);
        return Map.of("offset", stats.getOffsetTable().entrySet().stream().filter(entry -> entry.getKey().getQueueId() == 1)
            .mapToLong(entry -> entry.getValue().getConsumerOffset()).sum());
    }

    private Map<String, Object> cloneOffset() throws Exception {
        int unknown = 0;
        try {
            admin.cloneGroupOffset(group, group + "_unknown", topic, true);
        } catch (MQClientException e) {
            unknown = e.getResponseCode();
        }
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group + "_b");
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        admin.cloneGroupOffset(group, group + "_b", topic, true);
        long source = consumed(group);
        return Map.of("same", source == consumed(group + "_b") && source > 0, "unknown", unknown);
    }

    private Map<String, Object> queryByKey() throws Exception {
        Message message = new Message(topic, "lookup", "key-" + topic, "found".getBytes(StandardCharsets.UTF_8));
        producer.send(message);
        long end = System.currentTimeMillis() + PATIENCE_MS;
        int found = 0;
        while (found == 0 && System.currentTimeMillis() < end) {
            try {
                found = admin.queryMessage(topic, "key-" + topic, 10, 0, Long.MAX_VALUE).getMessageList().size();
            } catch (MQClientException e) {
                Thread.sleep(100);
            }
        }
        int tagged = admin.queryMessage(null, topic, "lookup", 10, 0, Long.MAX_VALUE, "T", null).getMessageList().size();
        return Map.of("found", found, "tagged", tagged);
    }

    private Map<String, Object> consumeMode() throws Exception {
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 5_000);
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.PULL, 0, 5_000);
        int missing = 0;
        try {
            admin.setMessageRequestMode(broker, topic, group + "_none", MessageRequestMode.POP, 0, 5_000);
        } catch (MQClientException e) {
            missing = e.getResponseCode();
        }
        return Map.of("missing", missing);
    }

    /** Two consumers of a group that pops: one message fails once; then the group pulls, and pops again, while they run. */
    private Map<String, Object> popMode() throws Exception {
        String popping = group + "_popping";
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(popping);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        admin.setMessageRequestMode(broker, topic, popping, MessageRequestMode.POP, 0, 5_000);
        Queue<String> got = new ConcurrentLinkedQueue<>();
        Queue<Integer> tries = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer one = popper(popping, "one", got, tries);
        DefaultMQPushConsumer two = popper(popping, "two", got, tries);
        try {
            sendPopped("p", got, one, two);
            await("the second delivery", () -> tries.contains(1));
            int leases = tries.size();
            admin.setMessageRequestMode(broker, topic, popping, MessageRequestMode.PULL, 0, 5_000);
            sendPopped("q", got, one, two);
            admin.setMessageRequestMode(broker, topic, popping, MessageRequestMode.POP, 0, 5_000);
            sendPopped("r", got, one, two);
            Thread.sleep(1_000);
            return Map.of("received", got.stream().distinct().count(), "failed", leases - 1);
        } finally {
            one.shutdown();
            two.shutdown();
        }
    }

    private DefaultMQPushConsumer popper(String popping, String name, Queue<String> got, Queue<Integer> tries) throws Exception {
        DefaultMQPushConsumer popper = new DefaultMQPushConsumer(popping);
        popper.setNamesrvAddr(namesrv);
        popper.setInstanceName(name + "_" + topic);
        popper.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        popper.setClientRebalance(false);
        // What arrives while the group changes its mode is dropped by the client, and comes again after its lease.
        popper.setPopInvisibleTime(8_000);
        // It comes to a pull of the retry topic then, which the broker refuses until a heartbeat has told the subscription.
        popper.setHeartbeatBrokerInterval(1_000);
        popper.subscribe(topic, "popped");
        popper.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (var each : messages) {
                got.add(new String(each.getBody(), StandardCharsets.UTF_8));
                if (each.getKeys() != null) {
                    tries.add(each.getReconsumeTimes());
                    if (each.getReconsumeTimes() == 0) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        popper.start();
        return popper;
    }

    private void sendPopped(String stem, Queue<String> got, DefaultMQPushConsumer... poppers) throws Exception {
        for (int i = 0; i < MESSAGES; i++) {
            Message message = new Message(topic, "popped", (stem + i).getBytes(StandardCharsets.UTF_8));
            if (stem.equals("p") && i == 0) {
                message.setKeys("fails-once");
            }
            producer.send(message);
        }
        await("messages " + stem, () -> {
            for (DefaultMQPushConsumer popper : poppers) {
                popper.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
            }
            return got.stream().filter(each -> each.startsWith(stem)).distinct().count() == MESSAGES;
        });
    }

    /** A consumer that lets the broker choose its queues. */
    private Map<String, Object> serverAllocation() throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer served = new DefaultMQPushConsumer(group + "_served");
        served.setNamesrvAddr(namesrv);
        served.setInstanceName("served_" + topic);
        served.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        served.setClientRebalance(false);
        served.subscribe(topic, "served");
        served.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> got.add(each.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        served.start();
        try {
            for (int i = 0; i < MESSAGES; i++) {
                producer.send(new Message(topic, "served", new byte[] {(byte) i}));
            }
            await("messages of the served consumer", () -> got.stream().distinct().count() == MESSAGES);
        } finally {
            served.shutdown();
        }
        return Map.of("received", got.stream().distinct().count());
    }

    private long consumed(String name) throws Exception {
        return admin.examineConsumeStats(name, topic).getOffsetTable().values().stream().mapToLong(offsets -> offsets.getConsumerOffset()).sum();
    }

    private Map<String, Object> brokerConfig() throws Exception {
        Properties changed = new Properties();
        changed.setProperty("fileReservedTime", "48");
        admin.updateBrokerConfig(broker, changed);
        Properties forbidden = new Properties();
        forbidden.setProperty("brokerConfigPath", "/tmp/other");
        int code = 0;
        try {
            admin.updateBrokerConfig(broker, forbidden);
        } catch (MQBrokerException e) {
            code = e.getResponseCode();
        }
        return Map.of("value", admin.getBrokerConfig(broker).getProperty("fileReservedTime"), "forbidden", code);
    }
}
