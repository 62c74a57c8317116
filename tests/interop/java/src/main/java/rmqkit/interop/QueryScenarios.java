package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Finding messages again, and the administration calls. */
final class QueryScenarios {
    private static final int FIRST_ORDINAL_OF_5 = 412;

    private QueryScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("keys", QueryScenarios::keys);
        all.put("admin", QueryScenarios::admin);
    }

    /** By each of its keys, by offset message id and by unique id; an unknown key finds nothing. */
    private static void keys(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        long begin = System.currentTimeMillis() - 60_000;
        long end = begin + 3_600_000;
        Message message = run.message("with keys");
        message.setTags("K");
        message.setKeys(Set.of("orderA", "userB"));
        SendResult wanted = producer.send(message);
        Message other = run.message("other");
        other.setKeys("orderC");
        producer.send(other);
        for (String key : new String[] {"orderA", "userB"}) {
            run.await("index entry of " + key, () -> producer.queryMessage(run.topic, key, 32, begin, end).getMessageList().size() == 1);
            QueryResult result = producer.queryMessage(run.topic, key, 32, begin, end);
            run.same("with keys", text(result.getMessageList().get(0)), "body by key " + key);
            run.same(wanted.getMsgId(), result.getMessageList().get(0).getMsgId(), "unique id by key " + key);
        }
        int unknown = 0;
        try {
            unknown = producer.queryMessage(run.topic, "nobody", 32, begin, end).getMessageList().size();
        } catch (Exception e) {
            run.fact("unknown_key", e.getClass().getSimpleName());
        }
        run.same(0, unknown, "messages of an unknown key");
        MessageExt byOffset = producer.viewMessage(run.topic, wanted.getOffsetMsgId());
        run.same("with keys", text(byOffset), "body by offset id");
        run.same(wanted.getQueueOffset(), byOffset.getQueueOffset(), "queue offset by offset id");
        MessageExt byUnique = producer.viewMessage(run.topic, wanted.getMsgId());
        run.same("with keys", text(byUnique), "body by unique id");
        run.fact("found", 4);
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** Creates a topic, sees its route, its offsets and a group's progress, deletes it again. */
    private static void admin(Run run) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(run.namesrv);
        admin.setInstanceName(run.instance());
        run.closing(admin::shutdown);
        admin.start();
        var cluster = admin.examineBrokerClusterInfo();
        run.check(!cluster.getBrokerAddrTable().isEmpty(), "brokers in the cluster information");
        String broker = cluster.getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
        String clusterName = cluster.getClusterAddrTable().keySet().iterator().next();
        run.fact("broker", broker);

        TopicConfig config = new TopicConfig(run.topic);
        config.setReadQueueNums(3);
        config.setWriteQueueNums(3);
        admin.createAndUpdateTopicConfig(broker, config);
        run.await("route of the new topic", () -> admin.examineTopicRouteInfo(run.topic) != null);
        var route = admin.examineTopicRouteInfo(run.topic);
        run.same(3, route.getQueueDatas().get(0).getReadQueueNums(), "read queues in the route");
        run.same(3, route.getQueueDatas().get(0).getWriteQueueNums(), "write queues in the route");
        run.check(admin.fetchAllTopicList().getTopicList().contains(run.topic), "topic in the name server's list");

        DefaultMQProducer producer = run.producer();
        run.send(producer, "admin", 12);
        var stats = admin.examineTopicStats(run.topic);
        long stored = stats.getOffsetTable().values().stream().mapToLong(each -> each.getMaxOffset() - each.getMinOffset()).sum();
        run.fact("queues", stats.getOffsetTable().size());
        run.fact("stored", stored);
        run.same(3, stats.getOffsetTable().size(), "queues in the topic statistics");
        run.same(12L, stored, "messages in the topic statistics");

        Inbox inbox = new Inbox();
        String group = run.group("consumer");
        DefaultMQPushConsumer consumer = run.consume(group, "*", inbox);
        run.exactly(inbox, Run.texts("admin", 12));
        var connections = admin.examineConsumerConnectionInfo(group);
        run.same(1, connections.getConnectionSet().size(), "connections of the group");
        run.check(connections.getSubscriptionTable().containsKey(run.topic), "subscription in the connection information");
        consumer.shutdown();
        run.await("progress of the group", () -> consumed(admin, group, run.topic) == 12);
        run.fact("consumed", consumed(admin, group, run.topic));

        run.check(!admin.fetchBrokerRuntimeStats(broker).getTable().isEmpty(), "run-time statistics of the broker");
        run.check(admin.getBrokerConfig(broker).containsKey("brokerName"), "settings of the broker");
        admin.deleteTopicInBroker(new TreeSet<>(Set.of(broker)), run.topic);
        // The two String parameters changed places between the generations.
        boolean clusterFirst = MQVersion.CURRENT_VERSION >= FIRST_ORDINAL_OF_5;
        admin.deleteTopicInNameServer(new TreeSet<>(Set.of(run.namesrv)), clusterFirst ? clusterName : run.topic,
            clusterFirst ? run.topic : clusterName);
        run.await("topic gone", () -> !admin.fetchAllTopicList().getTopicList().contains(run.topic));
    }

    private static long consumed(DefaultMQAdminExt admin, String group, String topic) throws Exception {
        return admin.examineConsumeStats(group).getOffsetTable().entrySet().stream()
            .filter(entry -> entry.getKey().getTopic().equals(topic)).mapToLong(entry -> entry.getValue().getConsumerOffset()).sum();
    }
}
