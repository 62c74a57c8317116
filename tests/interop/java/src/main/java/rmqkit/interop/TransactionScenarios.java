package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Half messages, their ends, and the broker's questions. */
final class TransactionScenarios {
    private static final int EACH = 5;

    private TransactionScenarios() {
    }

    static void add(Map<String, Scenario> all) {
        all.put("transaction", TransactionScenarios::outcomes);
        all.put("transaction-check-times", TransactionScenarios::askedAgain);
    }

    /** What a message's text says its transaction does: at once, or when the broker asks. */
    private static final class ByText implements TransactionListener {
        final Map<String, Integer> asked = new ConcurrentHashMap<>();
        final Map<String, String> times = new ConcurrentHashMap<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String text = text(message);
            if (text.startsWith("commit")) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return text.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String text = text(message);
            int count = asked.merge(text, 1, Integer::sum);
            times.merge(text, String.valueOf(message.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES)), (a, b) -> a + "," + b);
            if (text.startsWith("third")) {
                return count < 3 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            }
            return text.startsWith("later") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        private static String text(Message message) {
            return new String(message.getBody(), StandardCharsets.UTF_8);
        }
    }

    private static TransactionMQProducer producer(Run run, ByText listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(run.group("transaction"));
        run.prepare(producer);
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    private static void send(Run run, TransactionMQProducer producer, String text) throws Exception {
        Message message = run.message(text);
        message.setTags("Tx");
        message.setKeys("key");
        message.putUserProperty("colour", "bl\u00e5");
        message.setFlag(7);
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        run.same(SendStatus.SEND_OK, result.getSendStatus(), "send status");
        run.check(result.getTransactionId() != null, "a transaction id");
    }

    /** Each message is delivered as its transaction ended, once, with what it was sent with; the broker asks only for open ones. */
    private static void outcomes(Run run) throws Exception {
        ByText listener = new ByText();
        TransactionMQProducer producer = producer(run, listener);
        for (String kind : new String[] {"commit", "rollback", "later", "never"}) {
            for (int i = 0; i < EACH; i++) {
                send(run, producer, Run.text(kind, i));
            }
        }
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "Tx", inbox);
        Set<String> expected = new TreeSet<>(Run.texts("commit", EACH));
        expected.addAll(Run.texts("later", EACH));
        run.awaitTexts(inbox, expected);
        Set<String> open = new TreeSet<>(Run.texts("later", EACH));
        open.addAll(Run.texts("never", EACH));
        run.await("all questions", () -> listener.asked.keySet().equals(open));
        run.exactly(inbox, expected);
        for (Inbox.Delivery each : inbox.all()) {
            run.same("key", each.message().getKeys(), "keys");
            run.same("bl\u00e5", each.message().getUserProperty("colour"), "user property");
            run.same(run.topic, each.message().getTopic(), "topic");
            // Apache's broker loses the flag of a message for which it asks.
            if (each.text().startsWith("commit")) {
                run.same(7, each.message().getFlag(), "flag");
            }
        }
    }

    /** The broker asks in each round until it hears the outcome, and says how often it has asked. */
    private static void askedAgain(Run run) throws Exception {
        ByText listener = new ByText();
        TransactionMQProducer producer = producer(run, listener);
        // A client of 4.x names its groups by a heartbeat some time after its first send, and a question before that
        // reaches nobody, but is counted. Who was asked once is known.
        send(run, producer, "later");
        run.await("the first question", () -> listener.asked.containsKey("later"));
        Inbox inbox = new Inbox();
        run.consume(run.group("consumer"), "*", inbox);
        send(run, producer, "third");
        run.exactly(inbox, Set.of("later", "third"));
        run.same("1,2,3", listener.times.get("third"), "counts of questions");
    }
}
