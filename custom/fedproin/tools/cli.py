"""The command `fedproin`: one module a verb; a user's mistake is one sentence and exit code 2."""

import argparse
import sys
from collections.abc import Sequence

from fedproin.errors import UserError
from fedproin.federation.identity import package_identity
from fedproin.tools import bench, data, doctor, pack, simulate, site


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="fedproin", description="Federated medical image classification with prototypes."
    )
    parser.add_argument("--version", action="version", version=f"fedproin {package_identity()}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (data, pack, site, doctor, simulate, bench):
        verb.add_parser(verbs)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
