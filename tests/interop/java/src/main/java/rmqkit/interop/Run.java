package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * One scenario under way: its names, the clients it made (closed at the end, last first), what it saw, and its checks.
 * Every client gets an instance name of its own, so that no two share a connection unless the scenario wants it.
 */
final class Run implements AutoCloseable {
    static final long PATIENCE_MS = 30_000;
    private static final int POLLS_BETWEEN_NUDGES = 15;

    final String namesrv;
    final String topic;
    private final String prefix;
    private final Map<String, String> options;
    private final AtomicInteger clients = new AtomicInteger();
    private final Map<String, Object> facts = Collections.synchronizedMap(new LinkedHashMap<>());
    private final Deque<Runnable> closers = new ArrayDeque<>();
    private volatile DefaultMQProducer lastProducer;

    Run(String namesrv, String scenario, String id, Map<String, String> options) {
        this.namesrv = namesrv;
        this.prefix = "it_" + scenario.replace('-', '_') + "_" + id;
        this.topic = options.getOrDefault("--topic", prefix);
        this.options = options;
    }

    String option(String name) {
        check(options.containsKey(name), "this scenario needs " + name);
        return options.get(name);
    }

    Map<String, Object> facts() {
        synchronized (facts) {
            return new LinkedHashMap<>(facts);
        }
    }

    void fact(String name, Object value) {
        facts.put(name, value);
    }

    /** A group name of this run; the same suffix gives the same name. */
    String group(String suffix) {
        return prefix + "_" + suffix;
    }

    String instance() {
        return prefix + "_" + clients.incrementAndGet();
    }

    void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    <T> void same(T expected, T actual, String what) {
        check(expected == null ? actual == null : expected.equals(actual), what + ": expected " + expected + ", got " + actual);
    }

    /** Asks again and again until the answer is true; an exception counts as "not yet". */
    void await(String what, Callable<Boolean> condition) throws Exception {
        await(what, PATIENCE_MS, condition);
    }

    void await(String what, long patienceMs, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + patienceMs * 1_000_000L;
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (condition.call()) {
                    return;
                }
                last = null;
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                last = e;
            }
            Thread.sleep(20);
        }
        TimeoutException late = new TimeoutException("not within " + patienceMs + " ms: " + what);
        late.initCause(last);
        throw late;
    }

    /** Lets time pass in which something must not happen (a second delivery) or must be reached (an idle, held pull). */
    void quiet(long ms) throws InterruptedException {
        Thread.sleep(ms);
    }

    /** Waits until the inbox holds so many deliveries, then a moment longer, and wants exactly these texts, each once. */
    void exactly(Inbox inbox, Set<String> expected) throws Exception {
        awaitTexts(inbox, expected);
        quiet(300);
        fact("received", inbox.size());
        same(expected, inbox.texts(), "the set of bodies");
        same(expected.size(), inbox.size(), "number of deliveries");
    }

    void awaitTexts(Inbox inbox, Set<String> expected) throws Exception {
        try {
            await("all deliveries", () -> inbox.texts().containsAll(expected));
        } catch (TimeoutException e) {
            Set<String> missing = new TreeSet<>(expected);
            missing.removeAll(inbox.texts());
            throw new AssertionError("deliveries " + inbox.size() + ", never delivered " + missing.size() + ", among them "
                + missing.stream().limit(5).toList());
        }
    }

    static Set<String> texts(String stem, int count) {
        Set<String> expected = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            expected.add(text(stem, i));
        }
        return expected;
    }

    static String text(String stem, int i) {
        return String.format("%s-%04d", stem, i);
    }

    Message message(String text) {
        return new Message(topic, text.getBytes(StandardCharsets.UTF_8));
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group("producer"));
        prepare(producer);
        producer.start();
        return producer;
    }

    private void inNamespace(ClientConfig client) {
        if (options.containsKey("--namespace")) {
            client.setNamespace(options.get("--namespace"));
        }
    }

    void prepare(DefaultMQProducer producer) {
        producer.setNamesrvAddr(namesrv);
        inNamespace(producer);
        producer.setInstanceName(instance());
        producer.setSendMsgTimeout(10_000);
        closing(producer::shutdown);
        lastProducer = producer;
    }

    /** Sends `count` messages one by one, each acknowledged before the next, and returns the acknowledgements. */
    List<SendResult> send(DefaultMQProducer producer, String stem, int count) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            SendResult result = producer.send(message(text(stem, i)));
            same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
            results.add(result);
        }
        return results;
    }

    /** A push consumer of the run's topic that is not started yet. */
    DefaultMQPushConsumer pushConsumer(String group, String expression) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        inNamespace(consumer);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setPollNameServerInterval(1_000);
        // A rebalance gives the subscription a new version and announces it by a heartbeat, which the 5.x client leaves out when another one is
        // under way; until the next one the broker must refuse every pull (SUBSCRIPTION_NOT_LATEST).
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.subscribe(topic, expression);
        closing(consumer::shutdown);
        return consumer;
    }

    /** A started push consumer that puts everything into the inbox and says success. */
    DefaultMQPushConsumer consume(String group, String expression, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(group, expression);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(inbox::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        started(consumer);
        return consumer;
    }

    /** Waits until the name server knows the topic, which may be a moment after the first send to it was acknowledged. */
    void routed() throws Exception {
        DefaultMQProducer asker = lastProducer;
        await("route of " + topic, () -> !asker.fetchPublishMessageQueues(topic).isEmpty());
    }

    /** Starts the consumer once the name server knows the topic, and waits until it has queues of it. */
    void started(DefaultMQPushConsumer consumer) throws Exception {
        routed();
        consumer.start();
        assigned(consumer, topic);
    }

    /**
     * Waits until the consumer has queues of a topic. It is nudged meanwhile: a 5.x client whose first heartbeat meets another one under way
     * skips its first rebalance, and a retry topic comes to be only with the heartbeat; both would wait for the next periodic rebalance.
     */
    void assigned(DefaultMQPushConsumer consumer, String wanted) throws Exception {
        var inner = consumer.getDefaultMQPushConsumerImpl();
        AtomicInteger polls = new AtomicInteger();
        await("queues of " + wanted, () -> {
            if (inner.getRebalanceImpl().getProcessQueueTable().keySet().stream().anyMatch(queue -> queue.getTopic().equals(consumer.withNamespace(wanted)))) {
                return true;
            }
            if (polls.incrementAndGet() % POLLS_BETWEEN_NUDGES == 0) {
                inner.getmQClientFactory().updateTopicRouteInfoFromNameServer(wanted);
                inner.getmQClientFactory().rebalanceImmediately();
            }
            return false;
        });
    }

    DefaultMQPullConsumer pullConsumer(String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        closing(consumer::shutdown);
        consumer.start();
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        closing(consumer::shutdown);
        return consumer;
    }

    void closing(Runnable closer) {
        synchronized (closers) {
            closers.push(closer);
        }
    }

    @Override
    public void close() {
        while (true) {
            Runnable closer;
            synchronized (closers) {
                closer = closers.poll();
            }
            if (closer == null) {
                return;
            }
            closer.run();
        }
    }
}
