package rmqkit.interop;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Plays scenarios of Apache's Java client against a cluster and prints one JSON line for each.
 *
 * <pre>Interop SCENARIO[,SCENARIO...]|all NAMESRV [--id ID] [--threads N] [--limit SECONDS] [--topic TOPIC] [--count N]</pre>
 *
 * The last two are for the scenarios that are one half of an exchange with another client.
 * Exit code 0: all proved; 1: at least one not proved; 2: wrong usage.
 */
public final class Interop {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private Interop() {
    }

    static Map<String, Scenario> scenarios() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        PullScenarios.add(all);
        RetryScenarios.add(all);
        GroupScenarios.add(all);
        DelayScenarios.add(all);
        RecallScenarios.add(all);
        SendScenarios.add(all);
        QueryScenarios.add(all);
        TransactionScenarios.add(all);
        return all;
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 2) {
            System.err.println("usage: Interop SCENARIO[,...]|all NAMESRV [--id ID] [--threads N] [--limit SECONDS]");
            System.exit(2);
        }
        Map<String, String> options = options(args);
        String id = options.getOrDefault("--id", Long.toString(System.currentTimeMillis(), 36));
        int threads = Integer.parseInt(options.getOrDefault("--threads", "1"));
        long limitSeconds = Long.parseLong(options.getOrDefault("--limit", "60"));
        Map<String, Scenario> known = scenarios();
        List<String> wanted = "all".equals(args[0]) ? new ArrayList<>(known.keySet()) : Arrays.asList(args[0].split(","));
        CrossScenarios.add(known);
        MemberScenarios.add(known);
        for (String name : wanted) {
            if (!known.containsKey(name)) {
                System.err.println("no scenario " + name + "; there are " + known.keySet());
                System.exit(2);
            }
        }
        AtomicBoolean allProved = new AtomicBoolean(true);
        ExecutorService slots = Executors.newFixedThreadPool(threads);
        for (String name : wanted) {
            slots.submit(() -> {
                if (!play(name, known.get(name), new Run(args[1], name, id, options), limitSeconds)) {
                    allProved.set(false);
                }
            });
        }
        slots.shutdown();
        slots.awaitTermination(1, TimeUnit.HOURS);
        OUT.flush();
        System.exit(allProved.get() ? 0 : 1);
    }

    private static Map<String, String> options(String[] args) {
        Map<String, String> options = new LinkedHashMap<>();
        for (int i = 2; i + 1 < args.length; i += 2) {
            options.put(args[i], args[i + 1]);
        }
        return options;
    }

    private static boolean play(String name, Scenario scenario, Run run, long limitSeconds) {
        long start = System.nanoTime();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("scenario", name);
        Throwable failure = null;
        ExecutorService player = Executors.newSingleThreadExecutor();
        Future<?> playing = player.submit(() -> {
            try (run) {
                scenario.play(run);
            }
            return null;
        });
        try {
            playing.get(limitSeconds, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            failure = e.getCause();
        } catch (TimeoutException e) {
            failure = new TimeoutException("scenario did not end within " + limitSeconds + " s");
            playing.cancel(true);
        } catch (InterruptedException e) {
            failure = e;
        } finally {
            player.shutdownNow();
        }
        line.put("ok", failure == null);
        line.put("seconds", Math.round((System.nanoTime() - start) / 1e7) / 100.0);
        line.put("facts", run.facts());
        line.put("error", failure == null ? null : describe(failure));
        synchronized (OUT) {
            OUT.println(Json.write(line));
        }
        return failure == null;
    }

    private static String describe(Throwable failure) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = failure; cause != null && text.length() < 2000; cause = cause.getCause()) {
            text.append(text.isEmpty() ? "" : " | caused by ").append(cause);
            for (StackTraceElement frame : cause.getStackTrace()) {
                if (frame.getClassName().startsWith("rmqkit.")) {
                    text.append(" at ").append(frame.getFileName()).append(':').append(frame.getLineNumber());
                    break;
                }
            }
        }
        return text.toString();
    }
}
