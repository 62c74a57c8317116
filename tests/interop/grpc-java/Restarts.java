import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * What a client of RocketMQ's Java client of version 5 does when its server is started again: Restarts ENDPOINT TOPIC WHAT.
 *
 * "all" sends messages and receives them, and prints "half" in between and "all" at the end. "hold" prints "held" with its
 * first message, which it never finishes. "take" prints the first message that it gets.
 */
public class Restarts {
    private static final int MESSAGES = 60;

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(5)).build();
        Set<String> got = ConcurrentHashMap.newKeySet();
        MessageListener listener = view -> {
            String text = StandardCharsets.UTF_8.decode(view.getBody()).toString();
            if (args[2].equals("hold")) {
                say("held " + text);
                sleep(600_000);
            } else if (args[2].equals("take")) {
                say("took " + text);
            }
            got.add(text);
            return ConsumeResult.SUCCESS;
        };
        PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(args[1] + "-group").setSubscriptionExpressions(Map.of(args[1], FilterExpression.SUB_ALL))
            .setMessageListener(listener).build();
        if (args[2].equals("all")) {
            Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(args[1]).build();
            for (int at = 0; at < MESSAGES; at++) {
                send(producer, provider.newMessageBuilder().setTopic(args[1])
                    .setBody(Integer.toString(at).getBytes(StandardCharsets.UTF_8)).build());
                sleep(100);
                if (at == MESSAGES / 2) {
                    say("half");
                }
            }
            while (got.size() < MESSAGES) {
                sleep(50);
            }
            say("all");
            Runtime.getRuntime().halt(0);
        }
        sleep(600_000);
        consumer.close();
    }

    /** Until the server has it: one that starts again takes nothing for some time. */
    private static void send(Producer producer, Message message) {
        while (true) {
            try {
                producer.send(message);
                return;
            } catch (ClientException | RuntimeException failure) {
                // A connection that is refused arrives as gRPC has it, unwrapped.
                sleep(200);
            }
        }
    }

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }
}
