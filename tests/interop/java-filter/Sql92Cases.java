import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/** Evaluates cases with Apache's SqlFilter as its broker does. A line of the input has fields in Base64: an expression, then names
 *  and values of properties. A line of the output: `E` when the expression does not parse, `1` when the properties match, else `0`;
 *  then the bits of the expression's text in the broker's bloom filter. */
public class Sql92Cases {
    public static void main(String[] args) throws Exception {
        BloomFilter bloom = BloomFilter.createByFn(20, 32);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split(" ", -1);
            for (int i = 0; i < fields.length; i++) {
                fields[i] = new String(Base64.getDecoder().decode(fields[i]), StandardCharsets.UTF_8);
            }
            out.append(verdict(fields));
            for (int bit : bloom.calcBitPositions(fields[0])) {
                out.append(' ').append(bit);
            }
            out.append('\n');
        }
        System.out.print(out);
    }

    private static char verdict(String[] fields) {
        Expression expression;
        try {
            expression = new SqlFilter().compile(fields[0]);
        } catch (Throwable e) {
            return 'E';
        }
        Map<String, Object> properties = new HashMap<>();
        for (int i = 1; i + 1 < fields.length; i += 2) {
            properties.put(fields[i], fields[i + 1]);
        }
        try {
            Object result = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            });
            return result instanceof Boolean && (Boolean) result ? '1' : '0';
        } catch (Throwable e) {
            return '0';
        }
    }
}
