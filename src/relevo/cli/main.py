"""`relevo`: parses the command line. What a command needs is imported when it runs, so that help
answers at once.

A process that multiprocessing spawns from ours imports this first and so ends with it; vLLM's
engine, for one, by itself outlives a worker that is killed.
"""

from __future__ import annotations

import sys

from relevo.cli.options import make_parser
from relevo.errors import CallerError, ConfigError, RelevoError
from relevo.launch.child import die_with_parent

die_with_parent()


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


if __name__ == "__main__":
    main()
