"""`python -m pmpguard` is `pmpguard`."""

import sys

from pmpguard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
