"""`python -m rmqkit.cli` does the same as `rmqkit`."""

import sys

from rmqkit.cli import main

sys.exit(main())
