"""Reading: messages fetched ahead, readers, durable consumers."""
