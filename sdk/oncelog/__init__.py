"""oncelog: a log where every message lands once."""

__version__ = "0.1.0"
