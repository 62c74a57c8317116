package rmqkit.interop.admin;

import java.util.Collection;
import java.util.Iterator;
import java.util.Map;

/** Writes maps, collections, strings, numbers, booleans and null as JSON on one line. */
final class Json {
    private Json() {
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        append(out, value);
        return out.toString();
    }

    private static void append(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            out.append('{');
            Iterator<? extends Map.Entry<?, ?>> entries = map.entrySet().iterator();
            while (entries.hasNext()) {
                Map.Entry<?, ?> entry = entries.next();
                text(out, String.valueOf(entry.getKey()));
                out.append(':');
                append(out, entry.getValue());
                out.append(entries.hasNext() ? "," : "");
            }
            out.append('}');
        } else if (value instanceof Collection<?> items) {
            out.append('[');
            Iterator<?> each = items.iterator();
            while (each.hasNext()) {
                append(out, each.next());
                out.append(each.hasNext() ? "," : "");
            }
            out.append(']');
        } else {
            text(out, String.valueOf(value));
        }
    }

    private static void text(StringBuilder out, String value) {
        out.append('"');
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
