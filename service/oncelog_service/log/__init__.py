"""One topic's log: the main path (topic_log), reading (scan), group commit (writer), ids (stamps), recovery, cache."""
