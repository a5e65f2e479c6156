package oncelog;

import com.google.inject.AbstractModule;
import com.google.inject.Guice;
import com.google.inject.Injector;
import io.cdap.cdap.api.metrics.MetricsCollectionService;
import io.cdap.cdap.common.conf.CConfiguration;
import io.cdap.cdap.common.conf.Constants;
import io.cdap.cdap.common.guice.ConfigModule;
import io.cdap.cdap.common.guice.InMemoryDiscoveryModule;
import io.cdap.cdap.common.guice.RemoteAuthenticatorModules;
import io.cdap.cdap.common.metrics.NoOpMetricsCollectionService;
import io.cdap.cdap.messaging.guice.MessagingServerRuntimeModule;
import io.cdap.cdap.messaging.server.MessagingHttpService;
import io.cdap.cdap.security.auth.context.AuthenticationContextModules;
import io.cdap.cdap.security.authorization.AuthorizationEnforcementModule;
import org.apache.twill.discovery.DiscoveryServiceClient;

/** CDAP's own messaging server, its data in the given folder: says its port on a line, and ends with its standard input. */
public final class CdapServer {

  public static void main(String[] arguments) throws Exception {
    CConfiguration configuration = CConfiguration.create();
    configuration.set(Constants.CFG_LOCAL_DATA_DIR, arguments[0]);
    configuration.set(Constants.MessagingSystem.HTTP_SERVER_BIND_ADDRESS, "127.0.0.1");
    Injector injector = Guice.createInjector(
        new ConfigModule(configuration),
        RemoteAuthenticatorModules.getNoOpModule(),
        new InMemoryDiscoveryModule(),
        new AuthenticationContextModules().getNoOpModule(),
        new AuthorizationEnforcementModule().getNoOpModules(),
        new MessagingServerRuntimeModule().getInMemoryModules(),
        new AbstractModule() {
          @Override
          protected void configure() {
            bind(MetricsCollectionService.class).toInstance(new NoOpMetricsCollectionService());
          }
        });
    MessagingHttpService server = injector.getInstance(MessagingHttpService.class);
    server.startAndWait();
    System.out.println(
        injector.getInstance(DiscoveryServiceClient.class)
            .discover(Constants.Service.MESSAGING_SERVICE).iterator().next().getSocketAddress().getPort());
    System.in.read();
    server.stopAndWait();
    System.exit(0);
  }
}
