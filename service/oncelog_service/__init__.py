"""The service: what operators run. It stands on the SDK's wire contract and on the deduplicating core."""
