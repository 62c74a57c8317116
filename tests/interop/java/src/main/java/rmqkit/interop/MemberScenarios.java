package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingException;

/** One half of an exchange: a member of a group that other clients belong to as well, and a producer of compressed bodies. */
final class MemberScenarios {
    private static final long PATIENCE_MS = 120_000;

    private MemberScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("member", MemberScenarios::member);
        all.put("compress", MemberScenarios::compress);
        all.put("produce", MemberScenarios::produce);
    }

    /**
     * A member of `--group`, `--order` none or queue, until the file `--stop` exists. The bodies of `--fail` fail. Appends the bodies to
     * the file `--log` as they are handled, and reports how often two of one queue were handled at once.
     */
    private static void member(Run run) throws Exception {
        run.producer();
        Path stop = Path.of(run.option("--stop"));
        Path log = Path.of(run.option("--log"));
        Set<String> failing = Set.of(run.option("--fail").split(","));
        List<Map<String, Object>> handled = new ArrayList<>();
        Map<String, AtomicInteger> inHand = new ConcurrentHashMap<>();
        AtomicInteger overlaps = new AtomicInteger();
        DefaultMQPushConsumer consumer = run.pushConsumer(run.option("--group"), "*");
        if ("queue".equals(run.option("--order"))) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                AtomicInteger count = inHand.computeIfAbsent(context.getMessageQueue().toString(), key -> new AtomicInteger());
                overlaps.addAndGet(count.incrementAndGet() > 1 ? 1 : 0);
                try {
                    return take(messages, failing, handled, log) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                } finally {
                    count.decrementAndGet();
                }
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return take(messages, failing, handled, log) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        run.started(consumer);
        run.await("the file " + stop, PATIENCE_MS, () -> Files.exists(stop));
        consumer.shutdown();
        synchronized (handled) {
            run.fact("handled", new ArrayList<>(handled));
        }
        run.fact("overlaps", overlaps.get());
    }

    private static boolean take(List<MessageExt> messages, Set<String> failing, List<Map<String, Object>> handled, Path log) {
        boolean fails = false;
        synchronized (handled) {
            for (MessageExt message : messages) {
                String text = new String(message.getBody(), StandardCharsets.UTF_8);
                fails |= failing.contains(text);
                Map<String, Object> seen = new LinkedHashMap<>();
                seen.put("text", text);
                seen.put("queue", message.getBrokerName() + ":" + message.getQueueId());
                seen.put("offset", message.getQueueOffset());
                seen.put("times", message.getReconsumeTimes());
                seen.put("topic", message.getTopic());
                handled.add(seen);
            }
            try {
                StringBuilder lines = new StringBuilder();
                for (MessageExt message : messages) {
                    lines.append(new String(message.getBody(), StandardCharsets.UTF_8)).append('\n');
                }
                Files.writeString(log, lines, java.nio.file.StandardOpenOption.CREATE, java.nio.file.StandardOpenOption.APPEND);
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
        return !fails;
    }

    /** Sends until the file `--stop` exists. Appends the bodies that were answered with SEND_OK to the file `--log`, and reports how many failed. */
    private static void produce(Run run) throws Exception {
        Path stop = Path.of(run.option("--stop"));
        Path log = Path.of(run.option("--log"));
        DefaultMQProducer producer = new DefaultMQProducer(run.group("producer"));
        run.prepare(producer);
        producer.setPollNameServerInterval(1_000);
        producer.setSendMsgTimeout(2_000);
        producer.start();
        int failed = 0;
        for (int number = 0; !Files.exists(stop); number++) {
            String text = "java-" + number;
            try {
                if (producer.send(run.message(text)).getSendStatus() == SendStatus.SEND_OK) {
                    Files.writeString(log, text + "\n", java.nio.file.StandardOpenOption.CREATE, java.nio.file.StandardOpenOption.APPEND);
                }
            } catch (MQClientException | RemotingException | MQBrokerException e) {
                failed++;
                Thread.sleep(20);
            }
        }
        run.fact("failed", failed);
    }

    /** Sends a body compressed by each of ZLIB, LZ4 and ZSTD (5.x clients). */
    private static void compress(Run run) throws Exception {
        Class<?> kinds = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
        int sent = 0;
        for (Object kind : kinds.getEnumConstants()) {
            DefaultMQProducer producer = new DefaultMQProducer(run.group("producer" + kind));
            run.prepare(producer);
            producer.setCompressMsgBodyOverHowmuch(100);
            producer.getClass().getMethod("setCompressType", kinds).invoke(producer, kind);
            producer.start();
            producer.send(run.message(kind + " padding".repeat(2_000)));
            sent++;
        }
        run.fact("sent", sent);
    }
}
