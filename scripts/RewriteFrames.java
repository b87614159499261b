import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads lines of message, version and hex. Prints for each whether Apache Kafka's class returned the
 * same bytes: same, unknown, or the error. record_rewritten.py runs it with Kafka's jars on the class
 * path.
 */
public class RewriteFrames {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.storage.internals.log.",
    };

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] frame = HexFormat.of().parseHex(words[2]);
            String verdict = verdict(words[0], Short.parseShort(words[1]), frame);
            System.out.println(words[0] + " " + words[1] + " " + verdict);
        }
    }

    private static String verdict(String name, short version, byte[] frame) throws Exception {
        Message message = find(name);
        if (message == null
                || version < message.lowestSupportedVersion()
                || version > message.highestSupportedVersion()) {
            return "unknown";
        }
        try {
            ByteBuffer input = ByteBuffer.wrap(frame);
            message.read(new ByteBufferAccessor(input), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer output = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(output), cache, version);
            if (input.hasRemaining()) {
                return input.remaining() + " bytes left over";
            }
            return Arrays.equals(output.array(), frame) ? "same" : "other bytes";
        } catch (RuntimeException refused) {
            return refused.toString();
        }
    }

    private static Message find(String name) throws Exception {
        for (String place : PACKAGES) {
            for (String suffix : new String[] {"", "Data"}) {
                try {
                    Class<?> found = Class.forName(place + name + suffix);
                    return (Message) found.getDeclaredConstructor().newInstance();
                } catch (ClassNotFoundException next) {
                    continue;
                }
            }
        }
        return null;
    }
}
