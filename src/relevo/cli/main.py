"""`relevo`: parses the command line. What a command needs is imported when it runs, so that help
answers at once."""

from __future__ import annotations

import sys

from relevo.cli.options import make_parser
from relevo.errors import CallerError, ConfigError, RelevoError


def main() -> None:
    """Exit codes: 0 done, 1 the system failed, 2 the caller's fault."""
    options = make_parser().parse_args()
    from relevo.cli import commands

    try:
        code = commands.run(options)
    except (CallerError, ConfigError) as error:
        print(f"relevo: {error}", file=sys.stderr)
        code = 2
    except RelevoError as error:
        print(f"relevo: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
