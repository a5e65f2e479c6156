"""What the process has once: its forks, its end, whose turn it is, requests whose waiting can be ended."""
