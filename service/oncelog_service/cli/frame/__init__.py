"""The frame of the command line: where a service is, how commands are found and loaded, how they print, and how they end."""
