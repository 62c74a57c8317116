package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.consumer.store.RemoteBrokerOffsetStore;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The application pulls itself: by queue and offset, or with the lite consumer. */
final class PullScenarios {
    private PullScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("lite-pull", PullScenarios::litePull);
        all.put("pull", PullScenarios::pull);
        all.put("read-queues", PullScenarios::readQueues);
        all.put("lite-assign", PullScenarios::liteAssign);
    }

    /** Reads every queue from its minimum to its maximum offset; the end, a too large offset and offsets by time answer as they must. */
    private static void pull(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        long before = System.currentTimeMillis();
        run.send(producer, "pull", 40);
        run.routed();
        String group = run.group("consumer");
        DefaultMQPullConsumer consumer = run.pullConsumer(group);
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(run.topic);
        run.fact("queues", queues.size());
        Set<String> got = new TreeSet<>();
        for (MessageQueue queue : queues) {
            long max = consumer.maxOffset(queue);
            run.same(0L, consumer.minOffset(queue), "minimum offset");
            run.same(0L, consumer.searchOffset(queue, before - 60_000), "offset of a time before the first message");
            long offset = 0;
            while (offset < max) {
                PullResult result = consumer.pull(queue, "*", offset, 3);
                run.same(PullStatus.FOUND, result.getPullStatus(), "pull status");
                run.check(result.getMsgFoundList().size() <= 3, "not more than asked for");
                run.same(max, result.getMaxOffset(), "maximum offset in the answer");
                for (MessageExt message : result.getMsgFoundList()) {
                    run.same(offset++, message.getQueueOffset(), "consecutive offsets");
                    got.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
                run.same(offset, result.getNextBeginOffset(), "next offset");
            }
            run.same(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", max, 32).getPullStatus(), "status at the end");
            PullResult beyond = consumer.pull(queue, "*", max + 100, 32);
            run.same(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "status beyond the end");
            run.same(max, beyond.getNextBeginOffset(), "offset to go on with");
            consumer.updateConsumeOffset(queue, max);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, max, false);
        }
        run.fact("received", got.size());
        run.same(Run.texts("pull", 40), got, "everything pulled");
        DefaultMQPullConsumer other = run.pullConsumer(group);
        for (MessageQueue queue : queues) {
            run.same(consumer.maxOffset(queue), other.fetchConsumeOffset(queue, true), "offset kept by the broker");
        }
    }

    /** Reports the bodies of `--topic`, from each queue's first message to its last, from whichever broker of a group is there. */
    private static void readQueues(Run run) throws Exception {
        DefaultMQPullConsumer consumer = run.pullConsumer(run.group("reader"));
        List<String> bodies = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(run.topic)) {
            PullResult result = consumer.pull(queue, "*", 0, 32);
            while (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
                result = consumer.pull(queue, "*", result.getNextBeginOffset(), 32);
            }
        }
        run.fact("bodies", bodies);
    }

    /** Subscribes, polls everything, commits; the group's next member gets only what came later. */
    private static void litePull(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "lite", 30);
        run.routed();
        String group = run.group("consumer");
        Set<String> got = new TreeSet<>();
        DefaultLitePullConsumer consumer = run.litePullConsumer(group);
        consumer.subscribe(run.topic, "*");
        consumer.setAutoCommit(false);
        consumer.start();
        run.await("everything polled", () -> poll(consumer, got) >= 30);
        run.fact("received", got.size());
        run.same(Run.texts("lite", 30), got, "everything polled");
        // A commit reaches the broker with the client's timer, ten seconds after its start at the earliest, as a one-way request.
        DefaultMQPullConsumer onlooker = run.pullConsumer(run.group("onlooker"));
        var factory = onlooker.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        OffsetStore kept = new RemoteBrokerOffsetStore(factory, group);
        Set<MessageQueue> queues = onlooker.fetchSubscribeMessageQueues(run.topic);
        run.await("offsets at the broker", () -> {
            consumer.commitSync();
            return queues.stream().mapToLong(queue -> kept.readOffset(queue, ReadOffsetType.READ_FROM_STORE)).sum() == 30;
        });
        consumer.shutdown();
        run.send(producer, "more", 10);
        Set<String> later = new TreeSet<>();
        DefaultLitePullConsumer next = run.litePullConsumer(group);
        next.subscribe(run.topic, "*");
        next.start();
        run.await("the rest polled", () -> poll(next, later) >= 10);
        run.fact("later", later.size());
        run.same(Run.texts("more", 10), later, "only what came later");
    }

    /** Chooses its queues, seeks back, and reads the same again. */
    private static void liteAssign(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "assign", 20);
        run.routed();
        DefaultLitePullConsumer consumer = run.litePullConsumer(run.group("consumer"));
        consumer.start();
        var queues = consumer.fetchMessageQueues(run.topic);
        consumer.assign(queues);
        Set<String> got = new TreeSet<>();
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        run.await("everything polled", () -> poll(consumer, got) >= 20);
        Set<String> again = new TreeSet<>();
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        run.await("everything polled again", () -> poll(consumer, again) >= 20);
        run.fact("received", got.size());
        run.fact("again", again.size());
        run.same(Run.texts("assign", 20), again, "everything polled again");
    }

    private static int poll(DefaultLitePullConsumer consumer, Set<String> got) {
        for (MessageExt message : consumer.poll(200)) {
            got.add(new String(message.getBody(), StandardCharsets.UTF_8));
        }
        return got.size();
    }
}
