"""`python -P -m rmqkit.supervisor NAME` runs a broker process; see `child`."""

import sys

from rmqkit.supervisor.child import main

sys.exit(main())
