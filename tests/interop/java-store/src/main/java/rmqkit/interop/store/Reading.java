package rmqkit.interop.store;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/** Prints every queue, every message of it, where its keys lead, and where its store time leads. */
final class Reading {
    private final OpenStore open;
    private final PrintStream out;

    Reading(OpenStore open, PrintStream out) {
        this.open = open;
        this.out = out;
    }

    void everything() throws Exception {
        for (Map.Entry<String, int[]> topic : open.queues().entrySet()) {
            for (int queueId : topic.getValue()) {
                queue(topic.getKey(), queueId);
            }
        }
    }

    private void queue(String topic, int queueId) throws Exception {
        long min = open.store.getMinOffsetInQueue(topic, queueId);
        long max = open.store.getMaxOffsetInQueue(topic, queueId);
        out.println(Json.write(Map.of("queue", Map.of("topic", topic, "id", queueId, "min", min, "max", max))));
        long offset = min;
        while (offset < max) {
            GetMessageResult result = open.store.getMessage("interop", topic, queueId, offset, 32, null);
            if (result == null || result.getMessageCount() == 0) {
                throw new IllegalStateException("nothing at " + offset + " of " + topic + " queue " + queueId + ": " + result);
            }
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                message(MessageDecoder.decode(buffer, true, false));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private void message(MessageExt message) {
        Map<String, Object> found = Writing.describe(message);
        Map<String, Object> byKey = new LinkedHashMap<>();
        for (String key : Writing.keysOf(message)) {
            byKey.put(key, lookUp(message.getTopic(), key, message.getStoreTimestamp()));
        }
        found.put("byKey", byKey);
        found.put("byTime", open.store.getOffsetInQueueByTime(message.getTopic(), message.getQueueId(), message.getStoreTimestamp()));
        out.println(Json.write(Map.of("message", found)));
    }

    private List<Long> lookUp(String topic, String key, long time) {
        QueryMessageResult result = open.store.queryMessage(topic, key, 64, time - 2_000, time + 2_000);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            offsets.add(MessageDecoder.decode(buffer, false, false).getCommitLogOffset());
        }
        result.release();
        return offsets;
    }
}
