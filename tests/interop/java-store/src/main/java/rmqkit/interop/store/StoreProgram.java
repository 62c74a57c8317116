package rmqkit.interop.store;

import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Opens a store directory with Apache's own store, reads all of it, appends to it, and stops in order or waits to be killed.
 *
 * <pre>StoreProgram DIRECTORY [--read yes] [--write COUNT] [--seed N] [--end close|wait] [--log BYTES] [--queue BYTES] [--slots N] [--entries N]
 * [--extension BYTES]</pre>
 *
 * Prints JSON lines: `{"queue": ...}` and `{"message": ...}` for what it read, `{"appended": ...}` for each append that was acknowledged, and
 * `{"done": ...}` when there is nothing left to do. With `--end wait` it goes on appending until it is killed.
 */
public final class StoreProgram {
    private StoreProgram() {
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable trouble) {
            trouble.printStackTrace();
            Runtime.getRuntime().halt(1); // an orderly end would wait for the store's threads
        }
        System.exit(0); // they are not all daemons
    }

    private static void run(String[] args) throws Exception {
        Options options = new Options(args, 1);
        PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16), false, StandardCharsets.UTF_8);
        try (OpenStore store = new OpenStore(args[0], options)) {
            if (options.text("--read", "no").equals("yes")) {
                new Reading(store, out).everything();
            }
            boolean wait = options.text("--end", "close").equals("wait");
            Writing writing = new Writing(store, out, options.number("--seed", 1));
            int count = options.number("--write", 0);
            for (int i = 0; i < count || wait; i++) {
                writing.append(i);
                if (wait) {
                    out.flush();
                }
            }
            store.awaitDispatch();
        }
        out.println(Json.write(Map.of("done", args[0])));
        out.flush();
    }
}
