"""A file is loaded into a topic, line by line at its place: stopped, killed and started as often as one likes."""
