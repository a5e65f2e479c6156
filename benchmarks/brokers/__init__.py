"""Kafka and Pulsar, from Maven's jars, and their clients: for measurements beside them, and for the page on PIP-6."""
