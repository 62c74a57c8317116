package rmqkit.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** What a group of consumers sees: sharing, taking over, broadcasting, keeping its progress, waking from a held pull. */
final class GroupScenarios {
    private GroupScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("rebalance", GroupScenarios::rebalance);
        all.put("long-polling", GroupScenarios::longPolling);
        all.put("broadcast", GroupScenarios::broadcast);
        all.put("offsets", GroupScenarios::offsets);
        all.put("two-groups", GroupScenarios::twoGroups);
    }

    /**
     * A second consumer takes some of the queues, nothing is lost, and when it stops the first takes them back. The JVM is started with
     * a rebalance period of a minute, so only the broker's notification can make either happen in time.
     */
    private static void rebalance(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String group = run.group("consumer");
        run.send(producer, "alone", 20);
        run.routed();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(run.topic);
        run.fact("queues", queues.size());
        Inbox first = new Inbox();
        Inbox second = new Inbox();
        run.consume(group, "*", first);
        run.awaitTexts(first, Run.texts("alone", 20));

        DefaultMQPushConsumer leaver = run.consume(group, "*", second);
        long joined = System.nanoTime();
        int[] round = {0};
        run.await("both consumers get new messages", () -> {
            int before = first.size();
            int mine = second.size();
            sendToEach(run, producer, queues, "shared" + round[0]++);
            run.await("a round is delivered", 5_000, () -> first.size() + second.size() >= before + mine + queues.size());
            return first.size() > before && second.size() > mine;
        });
        run.fact("share_ms", (System.nanoTime() - joined) / 1_000_000);
        run.fact("first", first.size());
        run.fact("second", second.size());

        leaver.shutdown();
        long left = System.nanoTime();
        int atLeave = second.size();
        sendToEach(run, producer, queues, "back");
        run.await("the first consumer has everything again", () -> first.texts().containsAll(each("back", queues.size())));
        run.fact("takeover_ms", (System.nanoTime() - left) / 1_000_000);
        run.same(atLeave, second.size(), "deliveries to the stopped consumer");

        Set<String> union = first.texts();
        union.addAll(second.texts());
        Set<String> expected = Run.texts("alone", 20);
        for (int i = 0; i < round[0]; i++) {
            expected.addAll(each("shared" + i, queues.size()));
        }
        expected.addAll(each("back", queues.size()));
        run.fact("sent", expected.size());
        run.fact("lost", expected.size() - union.size());
        run.same(expected, union, "everything sent was consumed");
    }

    private static Set<String> each(String stem, int queues) {
        return Run.texts(stem, queues);
    }

    private static void sendToEach(Run run, DefaultMQProducer producer, List<MessageQueue> queues, String stem) throws Exception {
        for (int i = 0; i < queues.size(); i++) {
            SendResult result = producer.send(run.message(Run.text(stem, i)), queues.get(i));
            run.same(queues.get(i), result.getMessageQueue(), "the queue asked for");
        }
    }

    /** A pull that is held at the broker answers as soon as a message arrives, not when the hold ends. */
    private static void longPolling(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "warm", 4);
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.awaitTexts(inbox, Run.texts("warm", 4));
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(run.topic);
        List<Long> latencies = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            run.quiet(700);
            String text = Run.text("wake", i);
            long start = System.nanoTime();
            producer.send(run.message(text), queues.get(i % queues.size()));
            run.await("wake-up", () -> inbox.texts().contains(text));
            latencies.add((System.nanoTime() - start) / 1_000_000);
        }
        run.fact("latencies_ms", latencies);
        run.fact("worst_ms", latencies.stream().mapToLong(Long::longValue).max().orElseThrow());
        run.check(latencies.stream().allMatch(ms -> ms < 1_000), "every wake-up under a second: " + latencies);
    }

    /** In BROADCASTING mode every consumer of the group gets every message. */
    private static void broadcast(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "cast", 20);
        List<Inbox> inboxes = List.of(new Inbox(), new Inbox());
        for (Inbox inbox : inboxes) {
            DefaultMQPushConsumer consumer = run.pushConsumer(run.group("consumer"), "*");
            var model = consumer.getMessageModel();
            consumer.setMessageModel(Enum.valueOf(model.getDeclaringClass(), "BROADCASTING"));
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(inbox::add);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            run.started(consumer);
        }
        run.awaitTexts(inboxes.get(0), Run.texts("cast", 20));
        run.awaitTexts(inboxes.get(1), Run.texts("cast", 20));
        run.send(producer, "later", 8);
        Set<String> expected = Run.texts("cast", 20);
        expected.addAll(Run.texts("later", 8));
        run.exactly(inboxes.get(0), expected);
        run.exactly(inboxes.get(1), expected);
        run.fact("first", inboxes.get(0).size());
        run.fact("second", inboxes.get(1).size());
    }

    /** A group that comes back goes on where it stopped: nothing again, nothing left out. */
    private static void offsets(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String group = run.group("consumer");
        run.send(producer, "before", 24);
        Inbox first = new Inbox();
        DefaultMQPushConsumer consumer = run.consume(group, "*", first);
        run.exactly(first, Run.texts("before", 24));
        consumer.shutdown();
        run.send(producer, "while", 12);
        Inbox second = new Inbox();
        run.consume(group, "*", second);
        run.awaitTexts(second, Run.texts("while", 12));
        run.send(producer, "after", 12);
        Set<String> expected = Run.texts("while", 12);
        expected.addAll(Run.texts("after", 12));
        run.awaitTexts(second, expected);
        run.quiet(500);
        Set<String> again = second.texts();
        again.retainAll(first.texts());
        run.fact("first", first.size());
        run.fact("second", second.size());
        run.fact("again", again.size());
        run.same(0, again.size(), "messages delivered again");
        run.same(expected.size(), second.size(), "deliveries after the restart");
    }

    /** Two groups do not share anything: each gets everything. */
    private static void twoGroups(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "both", 16);
        Inbox first = new Inbox();
        Inbox second = new Inbox();
        run.consume(run.group("one"), "*", first);
        run.consume(run.group("two"), "*", second);
        run.exactly(first, Run.texts("both", 16));
        run.exactly(second, Run.texts("both", 16));
    }
}
