package rmqkit.interop.admin;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer and a pull consumer with keys, and what becomes of their requests: one JSON line.
 *
 * <pre>KeysProgram NAMESRV TOPIC FORBIDDEN-TOPIC ACCESS-KEY SECRET-KEY WRONG-SECRET-KEY</pre>
 */
public final class KeysProgram {
    /** Java's own 3 s include the loading of its classes, for which a busy machine needs longer. */
    private static final int SEND_TIMEOUT_MS = 60_000;

    private KeysProgram() {
    }

    public static void main(String[] args) {
        try {
            System.out.println(Json.write(outcomes(args)));
            System.exit(0);
        } catch (Throwable e) {
            // The threads of clients would keep the program alive.
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static Map<String, Object> outcomes(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        Map<String, Object> line = new LinkedHashMap<>();
        AclClientRPCHook right = new AclClientRPCHook(new SessionCredentials(args[3], args[4]));
        AclClientRPCHook wrong = new AclClientRPCHook(new SessionCredentials(args[3], args[5]));
        DefaultMQProducer producer = producer(namesrv, "keys", right);
        line.put("sent", send(producer, topic));
        line.put("read", read(namesrv, topic, right));
        line.put("forbidden", send(producer, args[2]));
        line.put("guessed", send(producer(namesrv, "guessed", wrong), topic));
        return line;
    }

    private static DefaultMQProducer producer(String namesrv, String name, AclClientRPCHook hook) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("it_keys", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    /** The status of a message that was sent, or what the broker said instead, or the client after "client". */
    private static String send(DefaultMQProducer producer, String topic) throws Exception {
        try {
            return producer.send(new Message(topic, "one coffee".getBytes(StandardCharsets.UTF_8))).getSendStatus().name();
        } catch (MQBrokerException e) {
            return e.getResponseCode() + " " + e.getErrorMessage();
        } catch (MQClientException e) {
            if (e.getCause() instanceof MQBrokerException refused) {
                return refused.getResponseCode() + " " + refused.getErrorMessage();
            }
            return "client " + e.getErrorMessage();
        }
    }

    private static String read(String namesrv, String topic, AclClientRPCHook hook) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("it_keys_readers", hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("readers");
        consumer.start();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        PullResult found = consumer.pullBlockIfNotFound(queue, "*", 0, 1);
        return new String(found.getMsgFoundList().get(0).getBody(), StandardCharsets.UTF_8);
    }
}
