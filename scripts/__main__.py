"""Runs a command from any folder: `shardzoo train ...` is `python -m scripts.train ...` of the checkout.

Without a command it lists them. `make setup` writes .venv/bin/shardzoo, which runs this file. The checkout is on the path of this
process alone: an installed package would bring every other program of the environment modules named `models` and `data`.
"""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def commands() -> dict[str, str]:
    """Returns the first line of the documentation of every command, by name, without importing one."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py")) if is_command(path)}
    return {name: (ast.get_docstring(ast.parse(page)) or "").partition("\n")[0] for name, page in pages.items()}


def is_command(path: Path) -> bool:
    """Returns whether a file of this folder is a command: it runs `main` by `scripts.cli`."""
    return path.is_file() and "\n    cli.run(main)\n" in path.read_text(encoding="utf-8")


def main() -> None:
    name = sys.argv[1] if sys.argv[1:] else "--help"
    if name in ("-h", "--help"):
        print("usage: shardzoo COMMAND ...; shardzoo COMMAND --help prints its page\n")
        print("\n".join(f"{command:15} {line}" for command, line in commands().items()))
        return
    command = name.replace("-", "_")
    if not command.isidentifier() or not is_command(FOLDER / f"{command}.py"):
        from models.errors import nearest, shortened

        print(f"error: no command '{shortened(name)}'{nearest(name, commands())}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(f"scripts.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = str(FOLDER.parent)  # in place of this folder, or of the working one
    main()
