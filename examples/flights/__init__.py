"""The parts of the demo: the flights, a producer, a reader that keeps a table, streams on Spark, and the proofs at the end."""
