"""The engine inside this process."""
