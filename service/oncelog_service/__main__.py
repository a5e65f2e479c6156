"""`python -m oncelog_service` is `oncelog`."""

from oncelog_service.cli import main

if __name__ == "__main__":
    main()
