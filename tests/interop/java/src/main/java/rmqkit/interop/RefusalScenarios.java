package rmqkit.interop;

import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/** What rmqkit does not do yet must be an error with a code at the sender, never a message that is kept back or lost. */
final class RefusalScenarios {
    /** The property that setDelayTimeMs of the 5.x client writes; named here because the 4.9 client has no such method. */
    private static final String TIMER_DELAY_MS = "TIMER_DELAY_MS";

    private RefusalScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("refuse-timer", RefusalScenarios::timer);
    }

    private static void refused(Run run, Callable<?> send) throws Exception {
        try {
            run.fact("accepted", String.valueOf(send.call()));
        } catch (MQClientException | MQBrokerException e) {
            int code = 0;
            boolean broker = false;
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                if (cause instanceof MQBrokerException answer) {
                    broker = true;
                    code = answer.getResponseCode();
                    run.fact("remark", answer.getErrorMessage());
                }
            }
            run.fact("exception", e.getClass().getSimpleName());
            run.fact("broker_answer", broker);
            run.fact("code", code);
            run.check(broker && code != 0, "refused by an answer of the broker with a code");
            return;
        }
        throw new AssertionError("the send was accepted");
    }

    /** A message with a timer property is refused and not stored. */
    private static void timer(Run run) throws Exception {
        DefaultMQProducer producer = run.producer();
        run.send(producer, "plain", 1);
        Message message = run.message("timer");
        MessageAccessor.putProperty(message, TIMER_DELAY_MS, "1000");
        refused(run, () -> producer.send(message));
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.exactly(inbox, Run.texts("plain", 1));
    }
}
