package rmqkit.interop;

import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/** Recalls of messages that wait for their time. The methods are called by name: clients before 5.3.2 do not have them. */
final class RecallScenarios {
    private static final int ILLEGAL_OPERATION = 604;
    private static final long DELAY_MS = 4_000;

    private RecallScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("recall", RecallScenarios::recalled);
        all.put("recall-other-topic", RecallScenarios::otherTopic);
        all.put("recall-refused", RecallScenarios::refused);
    }

    /** A message without a time, one with a level, and one for each way to ask for a time. */
    private static Map<String, Message> messages(Run run) {
        Map<String, Message> all = new LinkedHashMap<>();
        for (String text : new String[] {"plain", "level", "after-ms", "after-seconds", "at"}) {
            all.put(text, run.message(text));
        }
        all.get("level").setDelayTimeLevel(1);
        MessageAccessor.putProperty(all.get("after-ms"), "TIMER_DELAY_MS", Long.toString(DELAY_MS));
        MessageAccessor.putProperty(all.get("after-seconds"), "TIMER_DELAY_SEC", Long.toString(DELAY_MS / 1000));
        MessageAccessor.putProperty(all.get("at"), "TIMER_DELIVER_MS", Long.toString(System.currentTimeMillis() + DELAY_MS));
        return all;
    }

    private static String handle(SendResult result) throws Exception {
        return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
    }

    private static String recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        try {
            return (String) DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class).invoke(producer, topic, handle);
        } catch (InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }

    /** What a time was asked for has a handle, and is not delivered once it is recalled; the others are. */
    private static void recalled(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        int handles = 0;
        for (Message message : messages(run).values()) {
            SendResult result = producer.send(message);
            if (handle(result) != null) {
                handles++;
                run.same(result.getMsgId(), recall(producer, run.topic, handle(result)), "id of the recalled message");
            }
        }
        run.fact("handles", handles);
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        Set<String> expected = new TreeSet<>(Set.of("plain", "level"));
        run.awaitTexts(inbox, expected);
        run.quiet(DELAY_MS + 3_000);
        run.exactly(inbox, expected);
    }

    /** A handle that names another topic recalls nothing, although the id is that of a message. */
    private static void otherTopic(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String other = run.group("other");
        producer.send(new Message(other, "x".getBytes(StandardCharsets.UTF_8)));
        for (Message message : messages(run).values()) {
            SendResult result = producer.send(message);
            if (handle(result) != null) {
                String[] parts = new String(Base64.getUrlDecoder().decode(handle(result)), StandardCharsets.UTF_8).split(" ");
                parts[1] = other;
                String forged = Base64.getUrlEncoder().encodeToString(String.join(" ", parts).getBytes(StandardCharsets.UTF_8));
                run.same(result.getMsgId(), recall(producer, other, forged), "id of the recalled message");
            }
        }
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.exactly(inbox, messages(run).keySet());
    }

    /** The handle of another topic, and one whose time is over, are refused with Apache's code; what waits is delivered. */
    private static void refused(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        String other = run.group("other");
        producer.send(new Message(other, "x".getBytes(StandardCharsets.UTF_8)));
        SendResult result = producer.send(messages(run).get("after-ms"));
        String[] parts = new String(Base64.getUrlDecoder().decode(handle(result)), StandardCharsets.UTF_8).split(" ");
        parts[3] = Long.toString(System.currentTimeMillis() - 1);
        String late = Base64.getUrlEncoder().encodeToString(String.join(" ", parts).getBytes(StandardCharsets.UTF_8));
        int refusals = 0;
        for (String[] given : new String[][] {{other, handle(result)}, {run.topic, late}}) {
            try {
                recall(producer, given[0], given[1]);
            } catch (MQBrokerException e) {
                run.same(ILLEGAL_OPERATION, e.getResponseCode(), "code");
                refusals++;
            }
        }
        run.fact("refusals", refusals);
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.exactly(inbox, Set.of("after-ms"));
    }
}
