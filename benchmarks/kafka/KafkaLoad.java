import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Load generator for Kafka, with the options and the report of benchmarks/load: Kafka's own producers, one connection each,
 * acks=1, batches of exactly --batch records, --in-flight batches on a connection, and a partition for each producer. */
public final class KafkaLoad {
    /** Bytes of a batch's head, and of a record beside a body of 128 to 8191 bytes without key and headers, at their most. */
    private static final int BATCH_HEAD = 61, RECORD_HEAD = 12;

    /** What one producer saw; latencies in nanoseconds. */
    private static final class Connection {
        long[] latencies = new long[1 << 16];
        int answered;

        /** Called by the producer's one network thread. */
        void answer(long nanoseconds) {
            if (answered == latencies.length) latencies = Arrays.copyOf(latencies, 2 * answered);
            latencies[answered++] = nanoseconds;
        }
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int at = 0; at + 1 < words.length; at += 2) options.put(words[at].substring(2), words[at + 1]);
        String server = options.get("server"), topic = options.getOrDefault("topic", "load");
        int size = Integer.parseInt(options.getOrDefault("size", "1024"));
        int connections = Integer.parseInt(options.getOrDefault("connections", "8"));
        int inFlight = Integer.parseInt(options.getOrDefault("in-flight", "32"));
        int batch = Integer.parseInt(options.getOrDefault("batch", "1"));
        long messages = Long.parseLong(options.getOrDefault("messages", "0"));
        double seconds = Double.parseDouble(options.getOrDefault("seconds", messages > 0 ? "3600" : "10"));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", server))) {
            admin.createTopics(List.of(new NewTopic(topic, connections, (short) 1))).all().get();
        } catch (java.util.concurrent.ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) throw error;
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", server);
        settings.put("acks", "1");
        settings.put("enable.idempotence", "false");
        settings.put("compression.type", "none");
        settings.put("batch.size", Integer.toString(BATCH_HEAD + batch * (size + RECORD_HEAD)));
        settings.put("linger.ms", batch > 1 ? "5" : "0");
        settings.put("max.in.flight.requests.per.connection", Integer.toString(inFlight));
        byte[] body = new byte[size];
        for (int at = 0; at < size; at++) body[at] = (byte) ('a' + at % 26);

        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        List<Connection> found = new ArrayList<>();
        for (int number = 0; number < connections; number++) {
            var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
            producer.partitionsFor(topic);
            producers.add(producer);
            found.add(new Connection());
        }
        AtomicLong left = new AtomicLong(messages > 0 ? messages : Long.MAX_VALUE);
        AtomicInteger errors = new AtomicInteger();
        List<String> first = java.util.Collections.synchronizedList(new ArrayList<>());
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long cpu = system.getProcessCpuTime(), start = System.nanoTime(), deadline = start + (long) (seconds * 1e9);
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < connections; number++) {
            var producer = producers.get(number);
            var connection = found.get(number);
            int partition = number;
            Thread thread = new Thread(() -> {
                Semaphore room = new Semaphore(inFlight * batch);
                while (System.nanoTime() < deadline && left.getAndDecrement() > 0) {
                    room.acquireUninterruptibly();
                    long sent = System.nanoTime();
                    producer.send(new ProducerRecord<>(topic, partition, null, body), (place, error) -> {
                        if (error == null) connection.answer(System.nanoTime() - sent);
                        else if (errors.getAndIncrement() < 5) first.add(error.toString());
                        room.release();
                    });
                }
                producer.flush();
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        double elapsed = (System.nanoTime() - start) / 1e9, used = (system.getProcessCpuTime() - cpu) / 1e9;
        for (var producer : producers) producer.close();

        int count = found.stream().mapToInt(each -> each.answered).sum();
        long[] latencies = new long[count];
        int filled = 0;
        for (Connection each : found) {
            System.arraycopy(each.latencies, 0, latencies, filled, each.answered);
            filled += each.answered;
        }
        Arrays.sort(latencies);
        StringBuilder quantiles = new StringBuilder();
        Map<String, Double> shares = Map.of("p50", 0.5, "p90", 0.9, "p99", 0.99, "p999", 0.999, "max", 1.0);
        shares.forEach((name, share) -> {
            if (count > 0) {
                long value = latencies[Math.max(0, (int) Math.ceil(share * count) - 1)];
                quantiles.append(quantiles.isEmpty() ? "" : ",").append(String.format("\"%s\":%.4f", name, value / 1e6));
            }
        });
        StringBuilder texts = new StringBuilder();
        for (String text : first) {
            texts.append(texts.isEmpty() ? "" : ",").append('"').append(text.replaceAll("[\"\\\\\\p{Cntrl}]", " ")).append('"');
        }
        System.out.printf(
            "{\"mode\":\"send\",\"messages\":%d,\"requests\":%d,\"seconds\":%.6f,\"messages_per_s\":%.1f,\"mb_per_s\":%.3f,"
                + "\"latency_ms\":{%s},\"generator_busy\":%.3f,\"generator_cpu_us_per_message\":%.3f,\"errors\":%d,"
                + "\"first_errors\":[%s]}%n",
            count, count / batch, elapsed, count / elapsed, count / elapsed * size / 1e6, quantiles, used / elapsed,
            used * 1e6 / Math.max(1, count), errors.get(), texts);
        System.exit(errors.get() > 0 || count == 0 ? 1 : 0);
    }
}
