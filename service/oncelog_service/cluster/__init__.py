"""Several processes over one store: who serves what, by leases that each write is fenced with."""
