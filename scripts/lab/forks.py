"""Training in a process that was forked from one that has imported everything, so that its start costs no imports."""

import atexit
import os
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts import cli


def run(argv: Sequence[str], output: Path, prepare: Callable[[], object]) -> typing.NoReturn:
    """Runs scripts.train in this process, which was forked, and ends it with the run's exit code.

    Args:
      argv: the name of the command, and its arguments.
      output: the file that standard output and standard error are added to.
      prepare: sets up the environment, and what has read it before the fork.
    """
    code = 1
    try:
        with output.open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        prepare()
        from scripts import train

        sys.argv = [*argv]
        cli.run(train.main)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)
