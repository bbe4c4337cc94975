"""Prints an experiment without running it: config, every parameter with shape, names, PartitionSpec and bytes per device.

python -m scripts.show                                    the list of experiments
python -m scripts.show gshard_m4.moe_2048e_36l            one of them, in seconds, without an array
python -m scripts.show gpt.quickstart --fields            the fields that a command line can set, and what they mean
python -m scripts.show gshard_m4.quickstart --collectives the collectives of its compiled training step
python -m scripts.show gshard_m4.quickstart --layout fully_sharded:2x4 --json
python -m scripts.show path/to/mine.py:mine               one in a file; also path/to/mine.json, as --json prints it
"""

import inspect
import textwrap

from configs import registry
from configs.fields import Field, fields
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser, optional=True)
    parser.add_argument("--collectives", action="store_true", help="compile the step and list its collectives")
    parser.add_argument(
        "--fields", action="store_true", help="list the fields that `--PATH VALUE` sets, with types, values and meaning"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args()
    if not args.experiment:
        summaries = {name: (inspect.getdoc(registry.lookup(name)) or "").partition("\n")[0] for name in registry.names()}
        width = max(map(len, summaries))
        cli.print_json(summaries) if args.json else print("\n".join(f"{k:{width}} {v}" for k, v in summaries.items()))
        return 0

    e = cli.chosen(args, overrides)
    if args.fields:
        settings = list(fields(e))
        cli.print_json([field._asdict() for field in settings]) if args.json else print("\n".join(map(entry, settings)))
        return 0
    if args.collectives:
        cli.use_devices(e.layout)

    from trainers.hlo import tables

    description = tables.describe(e)
    if args.collectives:
        description["collectives"] = tables.communication(e)
    cli.print_json(description) if args.json else print(tables.as_text(e, description))
    return 0


def entry(field: Field) -> str:
    """Returns the lines of a field: how it is set, with its type and its value, and what it means."""
    about = textwrap.fill(field.about, 100, initial_indent="    ", subsequent_indent="    ")
    value = field.value if field.value != "" else '""'
    return f"--{field.path} {field.type}\n    = {value}\n{about}"


if __name__ == "__main__":
    cli.run(main)
