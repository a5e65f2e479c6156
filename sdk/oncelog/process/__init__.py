"""What a process has once: its forks and its end; locks and requests that know of both."""
