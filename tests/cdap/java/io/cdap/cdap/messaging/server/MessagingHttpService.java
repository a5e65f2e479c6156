package io.cdap.cdap.messaging.server;

import com.google.inject.Inject;
import oncelog.Announced;
import org.apache.twill.discovery.DiscoveryService;

/** Has the name of CDAP's server and lies before it on the class path, so that CDAP's own tests start this one. */
public class MessagingHttpService extends Announced {

  @Inject
  public MessagingHttpService(DiscoveryService discoveryService) {
    super(discoveryService);
  }
}
