"""`python -m pmpguard` is `pmpguard`."""

import sys

from pmpguard.cli import main

sys.exit(main())
