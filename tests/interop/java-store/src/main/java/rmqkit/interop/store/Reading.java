package rmqkit.interop.store;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
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
            Extensions extensions = new Extensions();
            GetMessageResult result = open.store.getMessage("interop", topic, queueId, offset, 32, extensions);
            if (result == null || result.getMessageCount() == 0) {
                throw new IllegalStateException("nothing at " + offset + " of " + topic + " queue " + queueId + ": " + result);
            }
            int number = 0;
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                message(MessageDecoder.decode(buffer, true, false), extensions.seen.get(number++));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    /** Keeps the tags code and the bit map with which the store asks for each message. */
    private static final class Extensions implements MessageFilter {
        final List<Map<String, Object>> seen = new ArrayList<>();

        @Override
        public boolean isMatchedByConsumeQueue(Long tagsCode, ConsumeQueueExt.CqExtUnit unit) {
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("tagsCode", tagsCode);
            said.put("storeTimestamp", unit == null ? null : unit.getMsgStoreTime());
            said.put("bitMap", unit == null || unit.getFilterBitMap() == null ? null : new String(unit.getFilterBitMap(), StandardCharsets.US_ASCII));
            seen.add(said);
            return true;
        }

        @Override
        public boolean isMatchedByCommitLog(ByteBuffer buffer, Map<String, String> properties) {
            return true;
        }
    }

    private void message(MessageExt message, Map<String, Object> extension) {
        Map<String, Object> found = Writing.describe(message);
        found.put("extension", extension);
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
