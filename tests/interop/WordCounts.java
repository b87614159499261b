// A Kafka Streams application with exactly-once processing: copies words in capitals and counts them.
//
// Counting needs a topic to repartition the words and one to store the counts. Arguments: the address
// of the cluster, and a directory for the store.

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;

public class WordCounts {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("application.id", "words");
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("num.stream.threads", "2");
        settings.put("commit.interval.ms", "100");
        // It ends without leaving its group; the next one waits this long for it.
        settings.put("session.timeout.ms", "6000");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> words = builder.stream("words");
        words.mapValues(word -> word.toUpperCase()).to("capitals");
        words.selectKey((key, word) -> word)
            .groupByKey(Grouped.as("by-word"))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> count.toString())
            .to("counted");

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(
            new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
    }
}
