package rmqkit.interop;

import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** What rmqkit does not do yet must be an error with a code at the sender, never a message that is kept back or lost. */
final class RefusalScenarios {
    /** The property that setDelayTimeMs of the 5.x client writes; named here because the 4.9 client has no such method. */
    private static final String TIMER_DELAY_MS = "TIMER_DELAY_MS";

    private RefusalScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("refuse-transaction", RefusalScenarios::transaction);
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

    /** A half message is refused, the local transaction is not run, and nothing becomes readable. */
    private static void transaction(Run run) throws Exception {
        AtomicInteger executed = new AtomicInteger();
        TransactionMQProducer producer = new TransactionMQProducer(run.group("transaction"));
        run.prepare(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                executed.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        run.send(producer, "plain", 1);
        refused(run, () -> producer.sendMessageInTransaction(run.message("half"), null));
        run.same(0, executed.get(), "local transactions run");
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        run.exactly(inbox, Run.texts("plain", 1));
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
