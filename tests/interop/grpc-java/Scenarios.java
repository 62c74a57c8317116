import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.RecallReceipt;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * What RocketMQ's Java client of version 5 does: Scenarios ENDPOINT PREFIX [WITHOUT...]. Topics and groups are PREFIX and the name of
 * the scenario. One line of "name=value" for each scenario.
 */
public class Scenarios {
    private static final long PATIENCE_MS = 90_000;
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final String prefix;

    private Scenarios(String endpoint, String prefix) {
        this.configuration = ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        this.prefix = prefix;
    }

    public static void main(String[] args) throws InterruptedException {
        Scenarios all = new Scenarios(args[0], args[1]);
        Map<String, Callable<Object>> scenarios = new LinkedHashMap<>();
        scenarios.put("push", all::push);
        scenarios.put("fifo", all::fifo);
        scenarios.put("timed", all::timed);
        scenarios.put("recall", all::recall);
        scenarios.put("transaction", all::transaction);
        scenarios.put("simple", all::simple);
        scenarios.put("priority", all::priority);
        scenarios.put("dead", all::dead);
        scenarios.put("lite", all::lite);
        scenarios.keySet().removeAll(List.of(args).subList(2, args.length));
        List<Thread> threads = scenarios.entrySet().stream()
            .map(each -> new Thread(() -> System.out.println(each.getKey() + "=" + resultOf(each.getValue())))).toList();
        threads.forEach(Thread::start);
        for (Thread each : threads) {
            each.join();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Object resultOf(Callable<Object> scenario) {
        try {
            return scenario.call();
        } catch (Throwable failure) {
            failure.printStackTrace();
            return "failed: " + failure;
        }
    }

    private Producer producer(String name) throws Exception {
        return provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(prefix + name).build();
    }

    private PushConsumer pushed(String name, FilterExpression filter, MessageListener listener) throws Exception {
        return provider.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(prefix + name + "-group")
            .setSubscriptionExpressions(Map.of(prefix + name, filter)).setMessageListener(listener).build();
    }

    private SimpleConsumer received(String name, FilterExpression filter) throws Exception {
        return provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(prefix + name + "-group").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(prefix + name, filter)).build();
    }

    private MessageBuilder message(String name, String body) {
        return provider.newMessageBuilder().setTopic(prefix + name).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body).toString();
    }

    private static void await(BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + PATIENCE_MS * 1_000_000;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("not in time");
            }
            Thread.sleep(20);
        }
    }

    private static List<String> sorted(Collection<String> texts) {
        return texts.stream().sorted().toList();
    }

    private static final FilterExpression ALL = FilterExpression.SUB_ALL;

    /** Two tags of three, with keys and properties. */
    private Object push() throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        FilterExpression tags = new FilterExpression("a || b", FilterExpressionType.TAG);
        try (Producer producer = producer("push"); PushConsumer consumer = pushed("push", tags, view -> {
            got.add(text(view) + view.getTag().orElse("") + view.getKeys() + view.getProperties());
            return ConsumeResult.SUCCESS;
        })) {
            for (int at = 0; at < 6; at++) {
                String tag = String.valueOf("abc".charAt(at % 3));
                producer.send(message("push", "" + at).setTag(tag).setKeys("k" + at).addProperty("p", "v").build());
            }
            await(() -> got.size() >= 4);
            Thread.sleep(500);
            return sorted(got);
        }
    }

    /** Three message groups; one message fails once, and its group waits for it. */
    private Object fifo() throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        AtomicInteger failures = new AtomicInteger();
        try (Producer producer = producer("fifo"); PushConsumer consumer = pushed("fifo", ALL, view -> {
            if (text(view).equals("b1") && failures.getAndIncrement() == 0) {
                return ConsumeResult.FAILURE;
            }
            got.add(text(view));
            return ConsumeResult.SUCCESS;
        })) {
            for (int at = 0; at < 4; at++) {
                for (String group : List.of("a", "b", "c")) {
                    producer.send(message("fifo", group + at).setMessageGroup(group).build());
                }
            }
            await(() -> got.size() >= 12);
            List<String> orders = new ArrayList<>();
            for (String group : List.of("a", "b", "c")) {
                orders.add(String.join("", got.stream().filter(each -> each.startsWith(group)).toList()));
            }
            return orders + " failed " + failures.get() + " in all " + got.size();
        }
    }

    private Object timed() throws Exception {
        Queue<Long> late = new ConcurrentLinkedQueue<>();
        long due = System.currentTimeMillis() + 3_000;
        try (Producer producer = producer("timed"); PushConsumer consumer = pushed("timed", ALL, view -> {
            late.add(System.currentTimeMillis() - due);
            return ConsumeResult.SUCCESS;
        })) {
            producer.send(message("timed", "later").setDeliveryTimestamp(due).build());
            await(() -> !late.isEmpty());
            return late.peek() > -1_100 ? "not early" : "early by " + -late.peek();
        }
    }

    private Object recall() throws Exception {
        try (Producer producer = producer("recall"); SimpleConsumer consumer = received("recall", ALL)) {
            long due = System.currentTimeMillis() + 10_000;
            SendReceipt kept = producer.send(message("recall", "kept").setDeliveryTimestamp(due).build());
            SendReceipt gone = producer.send(message("recall", "gone").setDeliveryTimestamp(due).build());
            RecallReceipt receipt = producer.recallMessage(prefix + "recall", gone.getRecallHandle());
            List<String> got = new ArrayList<>();
            for (int tries = 0; tries < 18 && got.isEmpty(); tries++) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    got.add(text(view));
                    consumer.ack(view);
                }
            }
            return got + " recalled " + receipt.getMessageId().equals(gone.getMessageId());
        }
    }

    /** One committed, one rolled back, one decided when the server asks. */
    private Object transaction() throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        Queue<String> asked = new ConcurrentLinkedQueue<>();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(prefix + "transaction").setTransactionChecker(view -> {
                    asked.add(text(view));
                    return TransactionResolution.COMMIT;
                }).build();
             PushConsumer consumer = pushed("transaction", ALL, view -> {
                 got.add(text(view));
                 return ConsumeResult.SUCCESS;
             })) {
            Transaction first = producer.beginTransaction();
            producer.send(message("transaction", "committed").build(), first);
            first.commit();
            Transaction second = producer.beginTransaction();
            producer.send(message("transaction", "rolled back").build(), second);
            second.rollback();
            Transaction third = producer.beginTransaction();
            producer.send(message("transaction", "asked").build(), third);
            await(() -> got.stream().distinct().count() >= 2);
            return sorted(got.stream().distinct().toList()) + " asked " + asked.stream().distinct().toList();
        }
    }

    /** A filter in SQL, a lease that is shortened, and attempts. */
    private Object simple() throws Exception {
        FilterExpression sql = new FilterExpression("amount > 2", FilterExpressionType.SQL92);
        try (Producer producer = producer("simple"); SimpleConsumer consumer = received("simple", sql)) {
            for (int at = 0; at < 5; at++) {
                producer.send(message("simple", "" + at).addProperty("amount", "" + at).build());
            }
            List<String> got = new ArrayList<>();
            long end = System.nanoTime() + PATIENCE_MS * 1_000_000;
            while (got.size() < 3 && System.nanoTime() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    got.add(text(view) + "/" + view.getDeliveryAttempt());
                    if (text(view).equals("3") && view.getDeliveryAttempt() == 1) {
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(view);
                    }
                }
            }
            return sorted(got);
        }
    }

    /**
     * Two lite topics of three, one of them until the subscription ends. Apache's broker keeps what it has noticed of
     * a lite topic, also that its last message was acked, for the client's next pop, which comes with one3.
     */
    private Object lite() throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("lite"); LitePushConsumer consumer = provider.newLitePushConsumerBuilder()
                .setClientConfiguration(configuration).setConsumerGroup(prefix + "lite-group").bindTopic(prefix + "lite")
                .setMessageListener(view -> {
                    got.add(view.getLiteTopic().orElse("") + text(view));
                    return ConsumeResult.SUCCESS;
                }).build()) {
            consumer.subscribeLite("one");
            consumer.subscribeLite("two");
            for (int at = 0; at < 3; at++) {
                for (String name : List.of("one", "two", "three")) {
                    producer.send(message("lite", "" + at).setLiteTopic(name).build());
                }
            }
            await(() -> got.size() >= 6);
            producer.send(message("lite", "3").setLiteTopic("one").build());
            await(() -> got.size() >= 7);
            consumer.unsubscribeLite("two");
            producer.send(message("lite", "3").setLiteTopic("two").build());
            producer.send(message("lite", "4").setLiteTopic("one").build());
            await(() -> got.size() >= 8);
            Thread.sleep(500);
            return sorted(got);
        }
    }

    private Object priority() throws Exception {
        try (Producer producer = producer("priority"); SimpleConsumer consumer = received("priority", ALL)) {
            for (int at : new int[] {0, 2, 1, 3}) {
                producer.send(message("priority", "" + at).setPriority(at).build());
            }
            List<String> got = new ArrayList<>();
            for (int tries = 0; tries < 8 && got.size() < 4; tries++) {
                for (MessageView view : consumer.receive(1, Duration.ofSeconds(30))) {
                    got.add(text(view));
                    consumer.ack(view);
                }
            }
            return got;
        }
    }

    /** A message that always fails; its dead letter is looked for by the test. */
    private Object dead() throws Exception {
        Queue<Integer> attempts = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("dead"); PushConsumer consumer = pushed("dead", ALL, view -> {
            attempts.add(view.getDeliveryAttempt());
            return ConsumeResult.FAILURE;
        })) {
            producer.send(message("dead", "bad").build());
            await(() -> attempts.size() >= 2);
            Thread.sleep(3_000);
            return new ArrayList<>(attempts);
        }
    }
}
