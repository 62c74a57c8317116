package rmqkit.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Writes and reads the bodies whose tables have queues or numbers as keys, by the classes and the JSON library of one client generation.
 *
 * <pre>Bodies write</pre> prints one line for each body: its name and the text that Java puts on the wire.
 * <pre>Bodies read</pre> reads lines "NAME TAB TEXT" and prints for each what Java made of it: the tables of the body with their keys,
 * or the error. Both print JSON lines.
 */
public final class Bodies {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.remoting.protocol.admin.", "org.apache.rocketmq.remoting.protocol.body.",
        "org.apache.rocketmq.common.admin.", "org.apache.rocketmq.common.protocol.body.",
    };
    /** Body -> the getters of its tables. */
    private static final Map<String, String[]> TABLES = new LinkedHashMap<>();

    static {
        TABLES.put("TopicStatsTable", new String[] {"getOffsetTable"});
        TABLES.put("ConsumeStats", new String[] {"getOffsetTable"});
        TABLES.put("ResetOffsetBody", new String[] {"getOffsetTable"});
        TABLES.put("GetConsumerStatusBody", new String[] {"getMessageQueueTable", "getConsumerTable"});
        TABLES.put("ConsumerRunningInfo", new String[] {"getMqTable"});
        TABLES.put("LockBatchResponseBody", new String[] {"getLockOKMQSet"});
        TABLES.put("ConsumerOffsetSerializeWrapper", new String[] {"getOffsetTable"});
        TABLES.put("ClusterInfo", new String[] {"getBrokerAddrTable"});
    }

    private Bodies() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 1 && "write".equals(args[0])) {
            for (Map.Entry<String, Object> each : samples().entrySet()) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("body", each.getKey());
                line.put("text", new String(RemotingSerializable.encode(each.getValue()), StandardCharsets.UTF_8));
                OUT.println(Json.write(line));
            }
        } else if (args.length == 1 && "read".equals(args[0])) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                int tab = line.indexOf('\t');
                OUT.println(Json.write(read(line.substring(0, tab), line.substring(tab + 1).getBytes(StandardCharsets.UTF_8))));
            }
        } else {
            System.err.println("usage: Bodies write|read");
            System.exit(2);
        }
    }

    // -- reading --------------------------------------------------------------------------------------------------------------

    private static Map<String, Object> read(String name, byte[] text) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("body", name);
        try {
            Object body = RemotingSerializable.decode(text, type(name));
            for (String getter : TABLES.get(name)) {
                line.put(getter.substring(3), shown(body.getClass().getMethod(getter).invoke(body)));
            }
            line.put("error", null);
        } catch (Throwable failure) {
            line.put("error", String.valueOf(failure));
        }
        return line;
    }

    /** A table as a list of [class of the key, key, value], so that a key that stayed a text does not pass for a queue. */
    private static Object shown(Object value) throws Exception {
        if (value instanceof Map<?, ?> map) {
            List<Object> rows = new ArrayList<>();
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                rows.add(List.of(kind(entry.getKey()), shown(entry.getKey()), shown(entry.getValue())));
            }
            return rows;
        }
        if (value instanceof Iterable<?> items) {
            List<Object> rows = new ArrayList<>();
            for (Object item : items) {
                rows.add(List.of(kind(item), shown(item)));
            }
            return rows;
        }
        if (value instanceof MessageQueue queue) {
            return List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId());
        }
        if (value instanceof Number || value instanceof String || value == null) {
            return value;
        }
        Map<String, Object> numbers = new TreeMap<>();
        for (Method method : value.getClass().getMethods()) {
            boolean getter = method.getName().startsWith("get") && method.getParameterCount() == 0;
            if (getter && method.getReturnType() == long.class) {
                numbers.put(method.getName().substring(3), method.invoke(value));
            } else if (getter && Map.class.isAssignableFrom(method.getReturnType())) {
                numbers.put(method.getName().substring(3), shown(method.invoke(value)));
            }
        }
        return numbers;
    }

    private static String kind(Object value) {
        return value == null ? "null" : value.getClass().getSimpleName();
    }

    // -- writing --------------------------------------------------------------------------------------------------------------

    private static Map<String, Object> samples() throws Exception {
        Map<String, Object> bodies = new LinkedHashMap<>();
        MessageQueue first = new MessageQueue("TopicTest", "b-a", 0);
        MessageQueue second = new MessageQueue("TopicTest", "b-a", 1);
        put(bodies, "TopicStatsTable", "OffsetTable",
            Map.of(first, longs(make("TopicOffset"), "MinOffset", 0, "MaxOffset", 5, "LastUpdateTimestamp", 9)));
        put(bodies, "ConsumeStats", "OffsetTable",
            Map.of(first, longs(make("OffsetWrapper"), "BrokerOffset", 10, "ConsumerOffset", 7, "LastTimestamp", 3)));
        put(bodies, "ResetOffsetBody", "OffsetTable", new TreeMap<>(Map.of(first, 11L, second, 12L)));
        put(bodies, "GetConsumerStatusBody", "MessageQueueTable", new HashMap<>(Map.of(first, 11L)));
        put(bodies, "ConsumerRunningInfo", "MqTable",
            new TreeMap<>(Map.of(first, longs(make("ProcessQueueInfo"), "CommitOffset", 4, "CachedMsgMinOffset", 4))));
        put(bodies, "LockBatchResponseBody", "LockOKMQSet", new HashSet<>(Set.of(first)));
        Map<Integer, Long> offsets = new TreeMap<>(Map.of(0, 23L, 1, 7L));
        put(bodies, "ConsumerOffsetSerializeWrapper", "OffsetTable",
            new ConcurrentHashMap<>(Map.of("TopicTest@CG", new ConcurrentHashMap<>(offsets))));
        return bodies;
    }

    private static Object make(String name) throws Exception {
        return type(name).getConstructor().newInstance();
    }

    /** A body with one table, set as the class wants it: the parameter of the setter is another kind of map in each generation. */
    private static void put(Map<String, Object> bodies, String name, String table, Object value) throws Exception {
        Object made = make(name);
        for (Method method : made.getClass().getMethods()) {
            if (method.getName().equals("set" + table)) {
                boolean fits = method.getParameterTypes()[0].isInstance(value);
                method.invoke(made, fits ? value : new HashMap<>((Map<?, ?>) value));
            }
        }
        bodies.put(name, made);
    }

    private static Object longs(Object made, Object... namesAndValues) throws Exception {
        for (int i = 0; i < namesAndValues.length; i += 2) {
            long value = ((Number) namesAndValues[i + 1]).longValue();
            made.getClass().getMethod("set" + namesAndValues[i], long.class).invoke(made, value);
        }
        return made;
    }

    private static Class<?> type(String name) throws ClassNotFoundException {
        for (String place : PACKAGES) {
            try {
                return Class.forName(place + name);
            } catch (ClassNotFoundException elsewhere) {
                continue;
            }
        }
        throw new ClassNotFoundException(name);
    }
}
