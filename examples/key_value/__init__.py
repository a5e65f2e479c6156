"""A key-value store on one topic, with leaders that fence each other by expected offsets: KIP-27's own example."""
