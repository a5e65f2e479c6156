"""The worlds of the tests: a clock and a disk to set and to break, services in this process, and services that are killed."""
