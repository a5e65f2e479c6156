"""A Django shop whose orders are told on a topic, each once, by an outbox in its own database."""
