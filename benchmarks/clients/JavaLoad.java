import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Loads of Apache's Java client: `send NAMESRV TOPIC WARM_UP MESSAGES TASKS SIZE`, `consume NAMESRV TOPIC GROUP MESSAGES`. Prints one line of
 * JSON with messages, seconds, processor seconds and errors of the measured part.
 */
public final class JavaLoad {
    private static final com.sun.management.OperatingSystemMXBean SYSTEM =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private JavaLoad() {
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("send")) {
            send(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), Integer.parseInt(args[5]), Integer.parseInt(args[6]));
        } else {
            consume(args[1], args[2], args[3], Integer.parseInt(args[4]));
        }
        System.exit(0);
    }

    private static void send(String namesrv, String topic, int warmUp, int messages, int tasks, int size) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-load");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        run(producer, topic, warmUp, tasks, size);
        long cpu = SYSTEM.getProcessCpuTime();
        long start = System.nanoTime();
        int errors = run(producer, topic, messages, tasks, size);
        report(messages, System.nanoTime() - start, SYSTEM.getProcessCpuTime() - cpu, errors);
        producer.shutdown();
    }

    private static int run(DefaultMQProducer producer, String topic, int messages, int tasks, int size) throws Exception {
        byte[] body = "x".repeat(size).getBytes();
        AtomicInteger left = new AtomicInteger(messages);
        AtomicInteger errors = new AtomicInteger();
        Thread[] threads = new Thread[tasks];
        for (int i = 0; i < tasks; i++) {
            threads[i] = new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    try {
                        producer.send(new Message(topic, body));
                    } catch (Exception e) {
                        errors.incrementAndGet();
                    }
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return errors.get();
    }

    private static void consume(String namesrv, String topic, String group, int messages) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicInteger seen = new AtomicInteger();
        AtomicLong start = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            if (start.compareAndSet(0, System.nanoTime())) {
                cpu.set(SYSTEM.getProcessCpuTime());
            }
            if (seen.addAndGet(batch.size()) >= messages) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        report(seen.get(), System.nanoTime() - start.get(), SYSTEM.getProcessCpuTime() - cpu.get(), 0);
        consumer.shutdown();
    }

    private static void report(int messages, long elapsed, long cpu, int errors) {
        System.out.printf("{\"messages\":%d,\"seconds\":%.3f,\"cpu_s\":%.3f,\"errors\":%d}%n", messages, elapsed / 1e9, cpu / 1e9, errors);
    }
}
