package rmqkit.interop.verbs;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs many calls of mqadmin in one process: each line of a file is one call, its words separated by tabs. For each
 * call it prints a line with a form feed, then what the call has printed.
 */
public final class VerbsProgram {
    private static final int PATIENCE_S = 60;

    private VerbsProgram() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        ExecutorService calls = Executors.newCachedThreadPool();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            String[] words = line.split("\t");
            Callable<Void> call = () -> {
                MQAdminStartup.main0(words, null);
                return null;
            };
            String end = "";
            Future<Void> ended = calls.submit(call);
            try {
                ended.get(PATIENCE_S, TimeUnit.SECONDS);
            } catch (TimeoutException error) {
                ended.cancel(true);
                end = "does not end\n";
            } catch (ExecutionException error) {
                end = error.getCause() + "\n";
            }
            out.print("\f\n" + printed.toString(StandardCharsets.UTF_8) + end);
            out.flush();
        }
        // Threads of calls that were given up may still run.
        Runtime.getRuntime().halt(0);
    }
}
