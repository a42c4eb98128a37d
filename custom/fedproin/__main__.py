"""`python -m fedproin` is the command `fedproin`."""

import sys

from fedproin.tools.cli import main

sys.exit(main())
