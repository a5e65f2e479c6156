package oncelog;

import com.google.common.util.concurrent.AbstractIdleService;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import org.apache.twill.common.Cancellable;
import org.apache.twill.discovery.Discoverable;
import org.apache.twill.discovery.DiscoveryService;

/**
 * Stands where CDAP's tests start CDAP's server: a new oncelog service, announced under the same name.
 *
 * <p>A connection to the port that the system property names is one service: its port comes as a line, and it lives as long as
 * the connection does.
 */
public class Announced extends AbstractIdleService {

  private final DiscoveryService discoveryService;
  private Socket life;
  private Cancellable announcement;

  protected Announced(DiscoveryService discoveryService) {
    this.discoveryService = discoveryService;
  }

  @Override
  protected void startUp() throws Exception {
    InetAddress loopback = InetAddress.getByName("127.0.0.1");
    life = new Socket(loopback, Integer.getInteger("oncelog.services"));
    BufferedReader told = new BufferedReader(new InputStreamReader(life.getInputStream(), StandardCharsets.US_ASCII));
    InetSocketAddress address = new InetSocketAddress(loopback, Integer.parseInt(told.readLine()));
    announcement = discoveryService.register(new Discoverable("messaging.service", address));
  }

  @Override
  protected void shutDown() throws Exception {
    announcement.cancel();
    life.close();
  }
}
