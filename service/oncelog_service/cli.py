"""`oncelog`."""

import sys


def main() -> None: ...
