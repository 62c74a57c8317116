"""`python -m rmqkit` does the same as `rmqkit`."""

import sys

from rmqkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
