"""Runs a command from any folder: `shardzoo train ...` is `python -m scripts.train ...` of the checkout.

Without a command it lists them. `make setup` writes .venv/bin/shardzoo, which runs this file. The checkout is on the path
of this process alone: an installed package would put `models`, `data` and `configs` before those of every other program of the environment.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def commands() -> dict[str, str]:
    """Returns the first line of the documentation of every command, by name, without importing one."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}
    return {
        name: (ast.get_docstring(ast.parse(page)) or "").partition("\n")[0]
        for name, page in pages.items()
        if "\n    cli.run(main)\n" in page
    }


def main() -> None:
    name, *_ = [*sys.argv[1:], ""]
    if name in ("", "-h", "--help"):
        print("usage: shardzoo COMMAND ...; shardzoo COMMAND --help is its page\n")
        print("\n".join(f"{command:15} {line}" for command, line in commands().items()))
        return
    command, known = name.replace("-", "_"), commands()
    if command not in known:
        near = difflib.get_close_matches(command[:100], known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
        print(f"error: no command {name[:100]!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(f"scripts.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = str(FOLDER.parent)  # in place of this folder, or of the working one
    main()
