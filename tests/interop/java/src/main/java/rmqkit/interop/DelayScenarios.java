package rmqkit.interop;

import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Delay levels: not before the time, not long after it. */
final class DelayScenarios {
    private DelayScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("delay-level-2", run -> delayed(run, 2, 5_000));
        all.put("delay-level-1", run -> delayed(run, 1, 1_000));
    }

    private static void delayed(Run run, int level, long delayMs) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "now", 4);
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.awaitTexts(inbox, Run.texts("now", 4));
        Message message = run.message("later");
        message.setDelayTimeLevel(level);
        message.setTags("Delayed");
        message.setKeys("delayed");
        long sent = System.currentTimeMillis();
        run.same(SendStatus.SEND_OK, producer.send(message).getSendStatus(), "send status");
        run.await("the delayed message", () -> inbox.texts().contains("later"));
        Inbox.Delivery delivery = inbox.all().stream().filter(each -> each.text().equals("later")).findFirst().orElseThrow();
        long took = delivery.at() - sent;
        run.fact("took_ms", took);
        run.same(run.topic, delivery.message().getTopic(), "topic");
        run.same("Delayed", delivery.message().getTags(), "tags");
        run.same("delayed", delivery.message().getKeys(), "keys");
        run.check(took >= delayMs, "not before " + delayMs + " ms, was " + took);
        run.check(took < delayMs + 3_000, "at most 3 s late, was " + took);
    }
}
