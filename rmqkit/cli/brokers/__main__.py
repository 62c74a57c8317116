"""`python -P -m rmqkit.cli.brokers NAME` is a broker process; see `child`."""

import sys

from rmqkit.cli.brokers.child import main

sys.exit(main())
