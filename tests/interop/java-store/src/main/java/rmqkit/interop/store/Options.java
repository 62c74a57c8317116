package rmqkit.interop.store;

import java.util.HashMap;
import java.util.Map;

/** `--name value` pairs of the command line. */
final class Options {
    private final Map<String, String> given = new HashMap<>();

    Options(String[] args, int from) {
        for (int i = from; i + 1 < args.length; i += 2) {
            given.put(args[i], args[i + 1]);
        }
    }

    String text(String name, String otherwise) {
        return given.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(text(name, Integer.toString(otherwise)));
    }
}
