"""`python -m frontrank` is the command `frontrank`."""

import sys

from frontrank.cli import main

if __name__ == "__main__":
    sys.exit(main())
