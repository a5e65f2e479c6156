import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Load through Pulsar's own client, for benchmarks/brokers/pulsar.py.
 *
 * Arguments: an address, and a kind of work with what belongs to it. Says "ready"; each line of the input is how many seconds of
 * load are asked for; it answers with the seconds that it took, and those of each call.
 */
public class Load {
    private static PulsarClient client;

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).connectionsPerBroker(8).build();
        List<Callable<Void>> calls = calls(arguments);
        ExecutorService threads = Executors.newFixedThreadPool(calls.size());
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            System.out.println(turn(threads, calls, Double.parseDouble(line)));
        }
        System.exit(0); // without waiting for what the client would still tidy up
    }

    private static List<Callable<Void>> calls(String[] arguments) throws Exception {
        int[] numbers = new int[arguments.length];
        for (int at = 3; at < arguments.length; at++) {
            numbers[at] = Integer.parseInt(arguments[at]);
        }
        switch (arguments[1]) {
            case "publish": // topic, senders, messages of a call, bytes, topics
                return publishing(arguments[2], numbers[3], numbers[4], numbers[5], numbers[6]);
            case "read": // topic, messages of a batch, bytes, batches
                return List.of(reading(arguments[2], numbers[3], numbers[4], numbers[5]));
            case "transact": // topics' prefix, messages on each
                return List.of(transacting(arguments[2], numbers[3]));
            default:
                throw new IllegalArgumentException(arguments[1]);
        }
    }

    private static String turn(ExecutorService threads, List<Callable<Void>> calls, double seconds) throws Exception {
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        List<Future<List<Long>>> running = new ArrayList<>();
        for (Callable<Void> call : calls) {
            running.add(threads.submit(() -> again(call, end)));
        }
        List<Long> spans = new ArrayList<>();
        for (Future<List<Long>> each : running) {
            spans.addAll(each.get());
        }
        StringBuilder said = new StringBuilder().append((System.nanoTime() - began) / 1e9);
        for (long span : spans) {
            said.append(' ').append(span / 1e9);
        }
        return said.toString();
    }

    private static List<Long> again(Callable<Void> call, long end) throws Exception {
        List<Long> spans = new ArrayList<>();
        long began = System.nanoTime();
        while (spans.isEmpty() || began < end) {
            call.call();
            long now = System.nanoTime();
            spans.add(now - began);
            began = now;
        }
        return spans;
    }

    private static ProducerBuilder<byte[]> producer(String topic, String name) {
        return client.newProducer().topic(topic).producerName(name).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true);
    }

    private static byte[][] payloads(int messages, int bytes) {
        byte[][] payloads = new byte[messages][bytes];
        Random random = new Random();
        for (byte[] payload : payloads) {
            random.nextBytes(payload);
        }
        return payloads;
    }

    private static List<Callable<Void>> publishing(String topic, int senders, int messages, int bytes, int topics) throws Exception {
        List<Callable<Void>> calls = new ArrayList<>();
        byte[][] payloads = payloads(messages, bytes);
        for (int sender = 0; sender < senders; sender++) {
            ProducerBuilder<byte[]> builder = producer(topic + sender % topics, "p" + sender).maxPendingMessages(messages);
            if (messages == 1) {
                Producer<byte[]> producer = builder.enableBatching(false).create();
                calls.add(() -> {
                    producer.send(payloads[0]);
                    return null;
                });
            } else { // one batch a call, which the flush sends
                Producer<byte[]> producer = builder.batchingMaxMessages(messages).batchingMaxBytes(4 << 20)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
                calls.add(() -> batch(producer, payloads));
            }
        }
        return calls;
    }

    private static Void batch(Producer<byte[]> producer, byte[][] payloads) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>(payloads.length);
        for (byte[] payload : payloads) {
            sent.add(producer.sendAsync(payload));
        }
        producer.flush();
        for (CompletableFuture<MessageId> each : sent) {
            each.get();
        }
        return null;
    }

    private static Callable<Void> reading(String topic, int messages, int bytes, int times) throws Exception {
        Callable<Void> fill = publishing(topic, 1, messages, bytes, 1).get(0);
        for (int time = 0; time < times; time++) {
            fill.call();
        }
        Reader<byte[]> reader = client.newReader().topic(topic + "0").startMessageId(MessageId.earliest)
                .receiverQueueSize(10_000).create();
        return () -> {
            reader.seek(MessageId.earliest);
            for (int count = 0; count < messages * times; count++) {
                if (reader.readNext(30, TimeUnit.SECONDS) == null) {
                    throw new IllegalStateException(count + " messages instead of " + messages * times);
                }
            }
            return null;
        };
    }

    private static Callable<Void> transacting(String topic, int messages) throws Exception {
        List<Producer<byte[]>> producers = new ArrayList<>();
        for (int at = 0; at < 2; at++) { // what is sent waits for the transaction first, so that a flush comes too early
            producers.add(producer(topic + at, "p").batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS).create());
        }
        byte[][] payloads = payloads(messages, 100);
        return () -> {
            Transaction transaction = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (Producer<byte[]> producer : producers) {
                for (byte[] payload : payloads) {
                    sent.add(producer.newMessage(transaction).value(payload).sendAsync());
                }
            }
            for (CompletableFuture<MessageId> each : sent) {
                each.get();
            }
            transaction.commit().get();
            return null;
        };
    }
}
