package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A consumer that fails: the message comes back through the retry topic, and in the end goes to the dead letters. */
final class RetryScenarios {
    private static final int SHORTEST_DELAY_LEVEL = 1;

    private RetryScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("dlq", RetryScenarios::deadLetter);
        all.put("retry", RetryScenarios::retry);
    }

    private static DefaultMQPushConsumer failing(Run run, String group, Inbox inbox, int failures, int maxReconsumeTimes) throws Exception {
        DefaultMQPushConsumer consumer = run.pushConsumer(group, "*");
        if (maxReconsumeTimes >= 0) {
            consumer.setMaxReconsumeTimes(maxReconsumeTimes);
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(inbox::add);
            context.setDelayLevelWhenNextConsume(SHORTEST_DELAY_LEVEL);
            boolean fail = messages.stream().anyMatch(message -> message.getReconsumeTimes() < failures);
            return fail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        run.started(consumer);
        // The group's first heartbeat makes the retry topic.
        run.assigned(consumer, "%RETRY%" + group);
        return consumer;
    }

    /** Two failures: delivered three times, reconsumeTimes 0, 1, 2, at least a second apart, with topic, body and id unchanged. */
    private static void retry(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String id = run.send(producer, "retry", 1).get(0).getMsgId();
        Inbox inbox = new Inbox();
        failing(run, run.group("consumer"), inbox, 2, -1);
        run.await("three deliveries", () -> inbox.size() >= 3);
        run.quiet(1_500);
        List<Inbox.Delivery> deliveries = inbox.all();
        run.fact("deliveries", deliveries.size());
        run.fact("reconsume_times", deliveries.stream().map(Inbox.Delivery::reconsumeTimes).toList());
        run.same(List.of(0, 1, 2), deliveries.stream().map(Inbox.Delivery::reconsumeTimes).toList(), "reconsume times");
        for (int i = 0; i < 3; i++) {
            Inbox.Delivery delivery = deliveries.get(i);
            run.same(run.topic, delivery.message().getTopic(), "topic");
            run.same(Run.text("retry", 0), delivery.text(), "body");
            run.same(id, delivery.message().getMsgId(), "unique id");
            run.check(i == 0 || delivery.at() - deliveries.get(i - 1).at() >= 990, "a second between deliveries");
        }
        run.fact("gaps_ms", List.of(deliveries.get(1).at() - deliveries.get(0).at(), deliveries.get(2).at() - deliveries.get(1).at()));
    }

    /** With one retry allowed the second failure moves the message to the dead-letter topic, which can be read. */
    private static void deadLetter(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "dead", 1);
        Inbox inbox = new Inbox();
        String group = run.group("consumer");
        failing(run, group, inbox, Integer.MAX_VALUE, 1);
        run.await("two deliveries", () -> inbox.size() >= 2);
        String deadTopic = "%DLQ%" + group;
        DefaultMQPullConsumer reader = run.pullConsumer(run.group("reader"));
        run.await("route of " + deadTopic, () -> !reader.fetchSubscribeMessageQueues(deadTopic).isEmpty());
        Set<MessageQueue> queues = reader.fetchSubscribeMessageQueues(deadTopic);
        run.fact("dead_letter_queues", queues.size());
        MessageQueue queue = queues.iterator().next();
        run.await("the dead letter", () -> reader.maxOffset(queue) >= 1);
        PullResult pulled = reader.pull(queue, "*", 0, 32);
        run.same(PullStatus.FOUND, pulled.getPullStatus(), "pull status");
        MessageExt dead = pulled.getMsgFoundList().get(0);
        run.fact("dead_letters", pulled.getMsgFoundList().size());
        run.fact("deliveries", inbox.size());
        run.same(1, pulled.getMsgFoundList().size(), "dead letters");
        run.same(Run.text("dead", 0), new String(dead.getBody(), StandardCharsets.UTF_8), "body");
        run.same(run.topic, dead.getProperty("RETRY_TOPIC"), "topic it came from");
        run.quiet(1_500);
        run.same(2, inbox.size(), "deliveries before the message was given up");
    }
}
