package rmqkit.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** One half of an exchange with another client. The topic comes from `--topic`, the number of messages from `--count`; not part of `all`. */
final class CrossScenarios {
    private CrossScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("read", CrossScenarios::read);
        all.put("write", CrossScenarios::write);
    }

    /** Consumes what another client sent and reports the fields of every message, sorted by body. */
    private static void read(Run run) throws Exception {
        int count = Integer.parseInt(run.option("--count"));
        run.producer();
        Inbox inbox = new Inbox();
        run.consume(run.group("reader"), "*", inbox);
        run.await("all messages", () -> inbox.size() >= count);
        run.quiet(300);
        Map<String, Object> messages = new TreeMap<>();
        for (Inbox.Delivery delivery : inbox.all()) {
            Map<String, Object> fields = new TreeMap<>();
            fields.put("tags", delivery.message().getTags());
            fields.put("keys", delivery.message().getKeys());
            fields.put("colour", delivery.message().getUserProperty("colour"));
            fields.put("flag", delivery.message().getFlag());
            fields.put("id", delivery.message().getMsgId());
            messages.put(delivery.text(), fields);
        }
        run.fact("deliveries", inbox.size());
        run.fact("messages", messages);
    }

    /** Sends single messages, the last of them compressed, and then as many again in one batch. */
    private static void write(Run run) throws Exception {
        int count = Integer.parseInt(run.option("--count"));
        DefaultMQProducer producer = run.producer();
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String padding = i == count - 1 ? " padding".repeat(2_000) : "";
            producer.send(fields(run.message(Run.text("single", i) + padding), i));
            batch.add(fields(run.message(Run.text("batch", i)), i));
        }
        producer.send(batch);
        run.fact("sent", 2 * count);
    }

    private static Message fields(Message message, int i) {
        message.setTags("T" + i % 2);
        message.setKeys("key" + i);
        message.setFlag(i);
        message.putUserProperty("colour", "bl\u00e5 " + i);
        return message;
    }
}
