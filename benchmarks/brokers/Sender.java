import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.impl.MessageIdImpl;

/**
 * Pulsar's own client, for benchmarks/pip6.py.
 *
 * With an address alone: each line of the input is a topic, a producer's name and messages as id=payload; they go as one batch.
 * With topic, name, count, piece and milliseconds behind it: publishes a source of so many, a piece at a time.
 */
public class Sender {
    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            if (arguments.length > 1) {
                int[] numbers = {Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]), Integer.parseInt(arguments[5])};
                publish(client, arguments[1], arguments[2], numbers[0], numbers[1], numbers[2]);
                return;
            }
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line; (line = input.readLine()) != null; ) {
                System.out.println(live(client, line.split("\t")));
            }
        }
    }

    /** No time-out, as Pulsar's documents ask for where each message must be stored once. */
    private static Producer<byte[]> producer(PulsarClient client, String topic, String name, long delayMs) throws Exception {
        return client.newProducer().topic(topic).producerName(name).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true)
                .batchingMaxMessages(1000).batchingMaxPublishDelay(delayMs, TimeUnit.MILLISECONDS).create();
    }

    /** One life of a producer; what it was told of each message. */
    private static String live(PulsarClient client, String[] words) throws Exception {
        List<String> told = new ArrayList<>();
        try (Producer<byte[]> producer = producer(client, words[0], words[1], 10_000)) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int at = 2; at < words.length; at++) {
                String[] message = words[at].split("=");
                sent.add(producer.newMessage().sequenceId(Long.parseLong(message[0])).value(message[1].getBytes()).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                told.add(each.handle((id, error) -> error == null ? told(id) : error.getClass().getSimpleName()).get());
            }
        }
        return String.join("\t", told);
    }

    /** A duplicate has an id that no message has. */
    private static String told(MessageId id) {
        return ((MessageIdImpl) id).getLedgerId() < 0 ? "duplicate" : "stored";
    }

    private static void publish(PulsarClient client, String topic, String name, int count, int piece, long ms) throws Exception {
        try (Producer<byte[]> producer = producer(client, topic, name, 5)) {
            for (int number = (int) Math.max(producer.getLastSequenceId(), 0) + 1; number <= count; number++) {
                int sent = number;
                producer.newMessage().sequenceId(number).value(String.valueOf(number).getBytes()).sendAsync().thenRun(() -> {
                    if (sent % piece == 0) {
                        System.out.println(sent);
                    }
                });
                if (number % piece == 0) {
                    Thread.sleep(ms);
                }
            }
            producer.flush();
        }
        System.out.println("end");
    }
}
