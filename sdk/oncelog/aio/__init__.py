"""The asyncio twin: shells around the same cores, whose waiting is awaited."""
