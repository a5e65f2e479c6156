"""What clients may take of what all of them share: connections, turns of what is sent ahead, memory of unread answers."""
