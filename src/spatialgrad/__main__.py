"""``python -m spatialgrad``: the command ``spatialgrad``."""

import sys

from spatialgrad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
