package oncelog;

import com.google.inject.Guice;
import com.google.inject.Injector;
import io.cdap.cdap.api.common.Bytes;
import io.cdap.cdap.api.dataset.lib.CloseableIterator;
import io.cdap.cdap.api.messaging.Message;
import io.cdap.cdap.common.conf.CConfiguration;
import io.cdap.cdap.common.conf.Constants;
import io.cdap.cdap.common.guice.ConfigModule;
import io.cdap.cdap.common.guice.InMemoryDiscoveryModule;
import io.cdap.cdap.common.guice.RemoteAuthenticatorModules;
import io.cdap.cdap.messaging.client.ClientMessagingService;
import io.cdap.cdap.messaging.context.MultiThreadMessagingContext;
import io.cdap.cdap.security.auth.context.AuthenticationContextModules;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.tephra.Transaction;
import org.apache.tephra.TransactionAware;
import org.apache.tephra.TransactionCodec;
import org.apache.tephra.TransactionContext;
import org.apache.tephra.TransactionFailureException;
import org.apache.tephra.TransactionManager;
import org.apache.tephra.inmemory.InMemoryTxSystemClient;
import org.apache.twill.discovery.Discoverable;
import org.apache.twill.discovery.DiscoveryService;

/**
 * Transactions of a Tephra transaction manager in this process, with CDAP's messaging context, on a topic of a service that is
 * killed meanwhile. Arguments: the service's port, the topic, a seed.
 *
 * <p>Says "ended STATE POINTER WRITER PAYLOAD…" for each transaction. A first line on standard input ends the writers; it says
 * "stopped". A second one ends the rest, when everybody has ended: it says "consumed PAYLOAD" for what a consumer was given that
 * went on from message to message all the time, "whole ID PAYLOAD" for what one is given that reads from the beginning, and
 * "snapshot HEX" for the transaction in which that was.
 */
public final class TephraFlow {

  private static final int PAGE = 500;

  private final InMemoryTxSystemClient transactions;
  private final ClientMessagingService service;
  private final String topic;
  private volatile boolean writing = true;
  private volatile boolean consuming = true;

  private TephraFlow(InMemoryTxSystemClient transactions, ClientMessagingService service, String topic) {
    this.transactions = transactions;
    this.service = service;
    this.topic = topic;
  }

  public static void main(String[] arguments) throws Exception {
    Injector injector = Guice.createInjector(
        new ConfigModule(CConfiguration.create()),
        RemoteAuthenticatorModules.getNoOpModule(),
        new InMemoryDiscoveryModule(),
        new AuthenticationContextModules().getNoOpModule());
    InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
    injector.getInstance(DiscoveryService.class).register(new Discoverable(Constants.Service.MESSAGING_SERVICE, address));
    TransactionManager manager = new TransactionManager(new Configuration());
    manager.startAndWait();
    new TephraFlow(
        new InMemoryTxSystemClient(manager), injector.getInstance(ClientMessagingService.class), arguments[1])
        .run(Long.parseLong(arguments[2]));
    System.exit(0);
  }

  private void run(long seed) throws Exception {
    BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
    List<Thread> writers = new ArrayList<>();
    for (int number = 0; number < 2; number++) {
      String name = "tephra" + number;
      Random random = new Random(seed + number);
      writers.add(begun(() -> write(name, random)));
    }
    List<String> consumed = new ArrayList<>();
    Thread consumer = begun(() -> consume(consumed));
    told.readLine();
    writing = false;
    for (Thread writer : writers) {
      writer.join();
    }
    System.out.println("stopped");
    told.readLine();
    consuming = false;
    consumer.join();
    consumed.forEach(payload -> System.out.println("consumed " + payload));
    whole();
  }

  private static Thread begun(Runnable work) {
    Thread thread = new Thread(work);
    thread.start();
    return thread;
  }

  /** One transaction after the other: some are left, some fail when everything is published. */
  private void write(String name, Random random) {
    MultiThreadMessagingContext messaging = new MultiThreadMessagingContext(service);
    Witness witness = new Witness();
    TransactionContext context = new TransactionContext(transactions, messaging, witness);
    for (int number = 0; writing; number++) {
      List<String> payloads = new ArrayList<>();
      for (int index = random.nextInt(20); index >= 0; index--) {
        payloads.add(name + ":" + number + ":" + index);
      }
      boolean leaves = random.nextInt(8) == 0;
      witness.refuses = random.nextInt(5) == 0;
      long pointer = 0;
      String state;
      try {
        context.start();
        pointer = context.getCurrentTransaction().getWritePointer();
        messaging.getMessagePublisher().publish("default", topic, payloads.toArray(new String[0]));
        if (leaves) {
          context.abort();
          state = "aborted";
        } else {
          context.finish();
          state = "committed";
        }
      } catch (TransactionFailureException failure) {
        state = "aborted";
      } catch (Exception unexpected) {
        throw new IllegalStateException(unexpected);
      }
      System.out.println("ended " + state + " " + pointer + " " + name + " " + String.join(" ", payloads));
      pause();
    }
  }

  /** As a subscriber of CDAP does: what there is after the last message, in one short transaction after the other. */
  private void consume(List<String> consumed) {
    MultiThreadMessagingContext messaging = new MultiThreadMessagingContext(service);
    TransactionContext context = new TransactionContext(transactions, messaging);
    String last = null;
    boolean more = true;
    while (more) {
      boolean ending = !consuming;
      int before = consumed.size();
      try {
        context.start();
        List<Message> page = page(messaging, last);
        context.finish();
        for (Message message : page) {
          consumed.add(message.getPayloadAsString());
          last = message.getId();
        }
      } catch (Exception away) {
        abort(context);
      }
      pause();
      more = !ending || consumed.size() > before;
    }
  }

  private void whole() throws Exception {
    MultiThreadMessagingContext messaging = new MultiThreadMessagingContext(service);
    TransactionContext context = new TransactionContext(transactions, messaging);
    context.start();
    String last = null;
    List<Message> page;
    do {
      page = page(messaging, last);
      for (Message message : page) {
        System.out.println("whole " + message.getId() + " " + message.getPayloadAsString());
        last = message.getId();
      }
    } while (!page.isEmpty());
    byte[] snapshot = new TransactionCodec().encode(context.getCurrentTransaction());
    System.out.println("snapshot " + Bytes.toHexString(snapshot));
    context.finish();
  }

  private List<Message> page(MultiThreadMessagingContext messaging, String after) throws Exception {
    List<Message> page = new ArrayList<>();
    try (CloseableIterator<Message> messages = messaging.getMessageFetcher().fetch("default", topic, PAGE, after)) {
      messages.forEachRemaining(page::add);
    }
    return page;
  }

  /** Time for others; and the service may be away. */
  private static void pause() {
    try {
      Thread.sleep(30);
    } catch (InterruptedException interruption) {
      throw new IllegalStateException(interruption);
    }
  }

  private static void abort(TransactionContext context) {
    try {
      context.abort();
    } catch (TransactionFailureException failure) {
      throw new IllegalStateException(failure);
    }
  }

  /**
   * The last participant: it refuses what has been published, and it knows what CDAP's own context does not say, that a publish got no
   * answer. Such a one may be stored and has not been rolled back, so its transaction must end as invalid.
   */
  private static final class Witness implements TransactionAware {

    private boolean refuses;
    private boolean publishing;
    private boolean published;

    @Override
    public void startTx(Transaction transaction) {
      publishing = false;
      published = false;
    }

    @Override
    public void updateTx(Transaction transaction) {
      throw new UnsupportedOperationException();
    }

    @Override
    public Collection<byte[]> getTxChanges() {
      publishing = true;
      return Collections.emptySet();
    }

    @Override
    public boolean commitTx() {
      published = true;
      return !refuses;
    }

    @Override
    public void postTxCommit() {}

    @Override
    public boolean rollbackTx() {
      return published || !publishing;
    }

    @Override
    public String getTransactionAwareName() {
      return "witness";
    }
  }
}
