package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way of sending; a push consumer proves that what was sent can be read, unchanged and once. */
final class SendScenarios {
    private SendScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("ordered", SendScenarios::ordered);
        all.put("sync", SendScenarios::sync);
        all.put("async", SendScenarios::async);
        all.put("oneway", SendScenarios::oneway);
        all.put("batch", SendScenarios::batch);
        all.put("tags", SendScenarios::tags);
        all.put("compressed", SendScenarios::compressed);
        all.put("large", SendScenarios::large);
    }

    /** Acknowledgements carry ids and consecutive queue offsets; the message comes back with every field as it was sent. */
    private static void sync(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Map<String, Message> sent = new HashMap<>();
        Map<String, SendResult> acknowledged = new HashMap<>();
        Map<Integer, Long> nextOffset = new HashMap<>();
        for (int i = 0; i < 20; i++) {
            String text = Run.text("sync \u00e4\u4e2d", i);
            Message message = run.message(text);
            message.setTags("T" + i % 3);
            message.setKeys("key" + i);
            message.setFlag(i * 7);
            message.putUserProperty("colour", "bl\u00e5 " + i);
            SendResult result = producer.send(message);
            run.same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
            run.check(result.getMsgId() != null && result.getOffsetMsgId() != null, "both message ids");
            run.same(nextOffset.getOrDefault(result.getMessageQueue().getQueueId(), 0L), result.getQueueOffset(), "queue offset");
            nextOffset.put(result.getMessageQueue().getQueueId(), result.getQueueOffset() + 1);
            sent.put(text, message);
            acknowledged.put(text, result);
        }
        run.fact("sent", sent.size());
        run.fact("queues", nextOffset.size());
        run.check(nextOffset.size() > 1, "round-robin over more than one queue");
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.exactly(inbox, sent.keySet());
        for (Inbox.Delivery delivery : inbox.all()) {
            MessageExt got = delivery.message();
            Message want = sent.get(delivery.text());
            SendResult result = acknowledged.get(delivery.text());
            run.same(want.getTopic(), got.getTopic(), "topic");
            run.same(want.getTags(), got.getTags(), "tags");
            run.same(want.getKeys(), got.getKeys(), "keys");
            run.same(want.getFlag(), got.getFlag(), "flag");
            run.same(want.getUserProperty("colour"), got.getUserProperty("colour"), "user property");
            run.same(result.getMsgId(), got.getMsgId(), "unique id");
            run.same(result.getQueueOffset(), got.getQueueOffset(), "queue offset");
            run.same(result.getMessageQueue().getQueueId(), got.getQueueId(), "queue id");
            run.same(0, got.getReconsumeTimes(), "reconsume times");
            run.check(got.getBornTimestamp() > 0 && got.getStoreTimestamp() >= got.getBornTimestamp(), "born and store time");
            run.check(got.getProperty("MIN_OFFSET") != null && got.getProperty("MAX_OFFSET") != null, "min and max offset properties");
        }
    }

    private static void async(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        int count = 100;
        CountDownLatch answered = new CountDownLatch(count);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Set<String> ids = ConcurrentHashMap.newKeySet();
        run.send(producer, "first", 1);
        for (int i = 0; i < count; i++) {
            producer.send(run.message(Run.text("async", i)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    ids.add(result.getMsgId());
                    answered.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failure.set(e);
                    answered.countDown();
                }
            });
        }
        run.check(answered.await(20, TimeUnit.SECONDS), "all callbacks");
        run.check(failure.get() == null, "no callback with an error: " + failure.get());
        run.fact("acknowledged", ids.size());
        run.same(count, ids.size(), "distinct ids");
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        Set<String> expected = Run.texts("async", count);
        expected.addAll(Run.texts("first", 1));
        run.exactly(inbox, expected);
    }

    private static void oneway(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "first", 1);
        for (int i = 0; i < 20; i++) {
            producer.sendOneway(run.message(Run.text("oneway", i)));
        }
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        Set<String> expected = Run.texts("oneway", 20);
        expected.addAll(Run.texts("first", 1));
        run.exactly(inbox, expected);
    }

    /** One request carries many messages; each gets a queue offset of its own and arrives as a message of its own. */
    private static void batch(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<Message> messages = new ArrayList<>();
        for (String text : Run.texts("batch", 25)) {
            Message message = run.message(text);
            message.setTags("B");
            message.setKeys(text);
            messages.add(message);
        }
        SendResult result = producer.send(messages);
        run.same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
        run.fact("ids", result.getMsgId().split(",").length);
        run.fact("offset_ids", result.getOffsetMsgId().split(",").length);
        run.same(25, result.getMsgId().split(",").length, "unique ids in the answer");
        run.same(25, result.getOffsetMsgId().split(",").length, "offset ids in the answer");
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "B", inbox);
        run.exactly(inbox, Run.texts("batch", 25));
        Set<Long> offsets = new TreeSet<>();
        Set<String> ids = new HashSet<>();
        for (Inbox.Delivery delivery : inbox.all()) {
            offsets.add(delivery.message().getQueueOffset());
            ids.add(delivery.message().getMsgId());
            run.same(delivery.text(), delivery.message().getKeys(), "keys");
        }
        run.same(25, offsets.size(), "distinct queue offsets");
        run.fact("distinct_ids", ids.size());
        // Apache's broker adds the properties of the batch to each of its messages; the 5.x client gives the batch a unique id too, which
        // then hides the ids of the messages. One id for all is therefore possible, some of them is not.
        boolean own = ids.equals(new HashSet<>(Arrays.asList(result.getMsgId().split(","))));
        run.check(own || ids.size() == 1, "the unique ids of the messages, or the one of the batch: " + ids);
    }

    /** Same key, same queue, same order, one thread at a time; a suspended queue hands out the same message again. */
    private static void ordered(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        int keys = 6;
        int each = 15;
        Map<Integer, Set<Integer>> queuesOfKey = new HashMap<>();
        for (int i = 0; i < each; i++) {
            for (int key = 0; key < keys; key++) {
                SendResult result = producer.send(run.message(key + ":" + i),
                    (queues, message, argument) -> queues.get((Integer) argument % queues.size()), key);
                run.same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
                queuesOfKey.computeIfAbsent(key, k -> new HashSet<>()).add(result.getMessageQueue().getQueueId());
            }
        }
        Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
        Map<MessageQueue, AtomicInteger> inside = new ConcurrentHashMap<>();
        Set<Integer> suspended = ConcurrentHashMap.newKeySet();
        AtomicInteger overlaps = new AtomicInteger();
        AtomicInteger done = new AtomicInteger();
        DefaultMQPushConsumer consumer = run.pushConsumer(run.group("consumer"), "*");
        consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            AtomicInteger here = inside.computeIfAbsent(context.getMessageQueue(), q -> new AtomicInteger());
            if (here.incrementAndGet() > 1) {
                overlaps.incrementAndGet();
            }
            try {
                for (MessageExt message : messages) {
                    String[] parts = new String(message.getBody(), StandardCharsets.UTF_8).split(":");
                    int key = Integer.parseInt(parts[0]);
                    int number = Integer.parseInt(parts[1]);
                    if (number == 3 && suspended.add(key)) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    seen.computeIfAbsent(key, k -> new ArrayList<>()).add(number);
                    done.incrementAndGet();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            } finally {
                here.decrementAndGet();
            }
        });
        run.started(consumer);
        run.await("all ordered messages", () -> done.get() >= keys * each);
        run.quiet(300);
        run.fact("received", done.get());
        run.fact("suspended", suspended.size());
        run.same(keys * each, done.get(), "number of messages");
        run.same(0, overlaps.get(), "two threads in one queue");
        List<Integer> inOrder = new ArrayList<>();
        for (int i = 0; i < each; i++) {
            inOrder.add(i);
        }
        for (int key = 0; key < keys; key++) {
            run.same(1, queuesOfKey.get(key).size(), "queues of key " + key);
            run.same(inOrder, seen.get(key), "order of key " + key);
        }
    }

    /** The broker filters by tag hash: `TagA || TagB` gives these two and nothing of TagC or without a tag. */
    private static void tags(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Set<String> expected = new TreeSet<>();
        String[] tags = {"TagA", "TagB", "TagC", null};
        for (int i = 0; i < 40; i++) {
            String tag = tags[i % 4];
            Message message = run.message(Run.text("tag" + tag, i));
            if (tag != null) {
                message.setTags(tag);
            }
            producer.send(message);
            if ("TagA".equals(tag) || "TagB".equals(tag)) {
                expected.add(Run.text("tag" + tag, i));
            }
        }
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "TagA || TagB", inbox);
        run.exactly(inbox, expected);
        Inbox everything = new Inbox();
        run.consume(run.group("everything"), "*", everything);
        run.await("the unfiltered group", () -> everything.size() == 40);
        run.fact("unfiltered", everything.size());
    }

    /** A compressible body over 4 KiB travels and is stored compressed and comes back equal. */
    private static void compressed(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        StringBuilder text = new StringBuilder();
        while (text.length() < 64 * 1024) {
            text.append("line ").append(text.length()).append(" of a text that compresses well\n");
        }
        byte[] body = text.toString().getBytes(StandardCharsets.UTF_8);
        producer.send(run.message(text.toString()));
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.await("the compressed message", () -> inbox.size() == 1);
        MessageExt got = inbox.all().get(0).message();
        run.fact("body_bytes", body.length);
        run.fact("stored_bytes", got.getStoreSize());
        run.check(Arrays.equals(body, got.getBody()), "equal bodies");
        run.check(got.getStoreSize() < body.length / 2, "stored compressed");
    }

    /** Bodies of 1 MiB that do not compress, above the size of one pull answer, come back equal. */
    private static void large(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        Random random = new Random(7);
        Map<String, byte[]> bodies = new HashMap<>();
        for (int i = 0; i < 3; i++) {
            byte[] body = new byte[1024 * 1024];
            random.nextBytes(body);
            Message message = new Message(run.topic, "large", "large" + i, body);
            producer.send(message);
            bodies.put("large" + i, body);
        }
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.await("all large messages", () -> inbox.size() == 3);
        for (Inbox.Delivery delivery : inbox.all()) {
            run.check(Arrays.equals(bodies.get(delivery.message().getKeys()), delivery.message().getBody()), "equal bodies");
        }
        run.fact("received", inbox.size());
    }
}
