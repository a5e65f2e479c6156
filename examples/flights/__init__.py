"""The parts of the demo: the flights themselves, a producer, a reader that keeps a table, and the proof at the end."""
