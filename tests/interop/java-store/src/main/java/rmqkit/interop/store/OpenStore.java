package rmqkit.interop.store;

import java.lang.reflect.Constructor;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.io.File;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Apache's DefaultMessageStore on a directory: loaded, recovered and started; closing stops it in order. */
final class OpenStore implements AutoCloseable {
    final DefaultMessageStore store;
    private final String root;

    OpenStore(String root, Options options) throws Exception {
        this.root = root;
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(options.number("--log", 4 << 20));
        config.setMappedFileSizeConsumeQueue(options.number("--queue", 1_000));
        config.setMaxHashSlotNum(options.number("--slots", 1_000));
        config.setMaxIndexNum(options.number("--entries", 4_000));
        config.setMaxMessageSize(1 << 20);
        config.setHaListenPort(0);
        config.setMessageIndexSafe(true); // after a crash all keys are indexed again, not only those of the last file
        config.setDiskMaxUsedSpaceRatio(95);
        config.setCleanFileForciblyEnable(false);
        int extension = options.number("--extension", 0);
        if (extension > 0) {
            config.setEnableConsumeQueueExt(true);
            config.setMappedFileSizeConsumeQueueExt(extension);
        }
        store = make(config);
        if (extension > 0) {
            store.getDispatcherList().addFirst(request -> request.setBitMap(bitMap(request.getUniqKey())));
        }
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
    }

    /** The constructors of the generations take the same things, but for the topic table that 5 added, which may be empty. */
    private static DefaultMessageStore make(MessageStoreConfig config) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        Map<Class<?>, Object> known = new HashMap<>();
        known.put(MessageStoreConfig.class, config);
        known.put(BrokerStatsManager.class, new BrokerStatsManager("interop", true));
        known.put(BrokerConfig.class, broker);
        known.put(java.util.concurrent.ConcurrentMap.class, new ConcurrentHashMap<>());
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        Object[] arguments = new Object[constructor.getParameterCount()];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = known.get(constructor.getParameterTypes()[i]);
        }
        return (DefaultMessageStore) constructor.newInstance(arguments);
    }

    /** In place of the verdicts of filters: the end of the message's unique key. */
    private static byte[] bitMap(String key) {
        return key == null ? null : key.substring(key.length() - 14).getBytes(java.nio.charset.StandardCharsets.US_ASCII);
    }

    /** Topic -> queue ids, as the folders say. */
    Map<String, int[]> queues() {
        Map<String, int[]> found = new TreeMap<>();
        File[] topics = new File(root, "consumequeue").listFiles(File::isDirectory);
        for (File topic : topics == null ? new File[0] : topics) {
            File[] queues = topic.listFiles(File::isDirectory);
            found.put(topic.getName(), java.util.Arrays.stream(queues).mapToInt(each -> Integer.parseInt(each.getName())).sorted().toArray());
        }
        return found;
    }

    void awaitDispatch() throws InterruptedException {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the queues stay behind the log");
            }
            Thread.sleep(1);
        }
    }

    @Override
    public void close() {
        store.shutdown();
    }
}
