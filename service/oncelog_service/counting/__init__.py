"""What a process counts as it goes, for whoever asks: the metrics, and what tells an operator how things are."""
