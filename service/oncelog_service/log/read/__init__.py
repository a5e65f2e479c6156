"""What readers ask for: pages, ranges, columns, subscriptions, who waits for more."""
