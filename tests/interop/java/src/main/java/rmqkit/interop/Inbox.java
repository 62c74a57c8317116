package rmqkit.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer was given, in the order it was given. Safe for many threads. */
final class Inbox {
    /** One delivery: the message, the text of its body and the wall-clock time of arrival in milliseconds. */
    record Delivery(MessageExt message, String text, int reconsumeTimes, long at) {
    }

    private final List<Delivery> deliveries = new ArrayList<>();

    synchronized void add(MessageExt message) {
        String text = new String(message.getBody(), StandardCharsets.UTF_8);
        deliveries.add(new Delivery(message, text, message.getReconsumeTimes(), System.currentTimeMillis()));
        notifyAll();
    }

    synchronized List<Delivery> all() {
        return new ArrayList<>(deliveries);
    }

    synchronized int size() {
        return deliveries.size();
    }

    Set<String> texts() {
        return all().stream().map(Delivery::text).collect(Collectors.toCollection(TreeSet::new));
    }
}
