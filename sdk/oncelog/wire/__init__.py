"""Every byte on the network: schemas, codecs, media types, models. The service imports this too, as brokers import clients."""
