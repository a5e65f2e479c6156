"""Reading: messages polled ahead, readers, durable consumers."""
