"""What keeps one client, or all of them, from taking more than there is: room on the disk, quotas, what one may hold."""
