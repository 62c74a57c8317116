package rmqkit.interop.store;

import java.io.PrintStream;
import java.math.BigInteger;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;

/**
 * Appends messages of all kinds, the same for the same seed, and prints each that the store acknowledged.
 *
 * Some classes moved from package to package between the generations; the imports on demand find them in both.
 */
final class Writing {
    private static final String[] TOPICS = {"Orders", "Payments", "%RETRY%group", "x"};
    private final OpenStore open;
    private final PrintStream out;
    private final int seed;
    private final Random random;

    Writing(OpenStore open, PrintStream out, int seed) {
        this.open = open;
        this.out = out;
        this.seed = seed;
        this.random = new Random(seed);
    }

    void append(int number) throws Exception {
        if (number % 50 == 49) {
            batch(number);
            return;
        }
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, number);
        byte[] body = new byte[number % 40 == 0 ? random.nextInt(64 << 10) : random.nextInt(1_500)];
        random.nextBytes(body);
        message.setBody(number % 20 == 1 ? new byte[0] : body);
        if (random.nextInt(3) > 0) {
            message.setTags("tag" + random.nextInt(4));
            message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        }
        if (random.nextInt(4) > 0) {
            message.setKeys("key" + seed + "-" + number + (random.nextBoolean() ? " shared" + number % 7 : ""));
        }
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%016X%016X", seed, number));
        message.putUserProperty("number", Integer.toString(number));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        acknowledged(open.store.putMessage(message), message, body(message));
    }

    private void fill(MessageExt message, int number) throws Exception {
        message.setTopic(TOPICS[random.nextInt(TOPICS.length)]);
        message.setQueueId(random.nextInt(3));
        message.setFlag(number);
        message.setBornTimestamp(1_700_000_000_000L + number);
        boolean six = random.nextInt(10) == 0;
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(six ? "2001:db8::7" : "10.0.0.7"), 4660));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName(random.nextInt(10) == 0 ? "::1" : "127.0.0.1"), 10911));
        message.setReconsumeTimes(number % 3);
    }

    private void batch(int number) throws Exception {
        List<Message> inner = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            byte[] body = new byte[random.nextInt(300)];
            random.nextBytes(body);
            Message message = new Message("Batches", "tag" + i, "key" + seed + "-" + number + "-" + i, body);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%016X%015X%X", seed, number, i));
            inner.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, number);
        batch.setTopic("Batches");
        batch.setBody(MessageBatch.generateFromList(inner).encode());
        PutMessageResult result = open.store.putMessages(batch);
        check(result);
        String[] ids = result.getAppendMessageResult().getMsgId().split(",");
        long offset = result.getAppendMessageResult().getLogicsOffset();
        for (int i = 0; i < inner.size(); i++) {
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("topic", "Batches");
            said.put("queue", batch.getQueueId());
            said.put("queueOffset", offset + i);
            said.put("physicalOffset", new BigInteger(ids[i].substring(ids[i].length() - 16), 16).longValueExact());
            said.put("msgId", ids[i]);
            said.put("keys", keysOf(inner.get(i)));
            said.put("storeTimestamp", result.getAppendMessageResult().getStoreTimestamp());
            said.put("tags", inner.get(i).getTags());
            said.put("flag", inner.get(i).getFlag());
            said.put("sha256", digest(inner.get(i).getBody()));
            out.println(Json.write(Map.of("appended", said)));
        }
    }

    private void acknowledged(PutMessageResult result, MessageExt message, byte[] body) throws Exception {
        check(result);
        AppendMessageResult at = result.getAppendMessageResult();
        message.setQueueOffset(at.getLogicsOffset());
        message.setCommitLogOffset(at.getWroteOffset());
        message.setMsgId(at.getMsgId());
        message.setStoreTimestamp(at.getStoreTimestamp());
        out.println(Json.write(Map.of("appended", describe(message))));
    }

    private static void check(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("refused: " + result);
        }
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("topic", message.getTopic());
        said.put("queue", message.getQueueId());
        said.put("queueOffset", message.getQueueOffset());
        said.put("physicalOffset", message.getCommitLogOffset());
        said.put("msgId", message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
        said.put("keys", keysOf(message));
        said.put("storeTimestamp", message.getStoreTimestamp());
        said.put("tags", message.getTags());
        said.put("flag", message.getFlag());
        said.put("sha256", digest(body(message)));
        return said;
    }

    private static byte[] body(MessageExt message) {
        return message.getBody() == null ? new byte[0] : message.getBody();
    }

    static List<String> keysOf(Message message) {
        List<String> keys = new ArrayList<>();
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (unique != null) {
            keys.add(unique);
        }
        if (message.getKeys() != null) {
            keys.addAll(Arrays.asList(message.getKeys().split(" ")));
        }
        return keys;
    }

    private static String digest(byte[] body) {
        try {
            return String.format("%064x", new BigInteger(1, MessageDigest.getInstance("SHA-256").digest(body)));
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
