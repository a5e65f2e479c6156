"""The command `oncelog`, and `python -m oncelog_service`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without the extra that it needs, say so."""
    try:
        from oncelog_service.cli import main as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("oncelog"):
            raise
        sys.exit(f"oncelog: {missing.name} is not installed; the commands and the service need: pip install 'oncelog[service]'")
    except KeyboardInterrupt:
        print("interrupted before it began", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
