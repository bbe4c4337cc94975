"""Starts an experiment here, under SLURM, on Google Kubernetes Engine or on TPU VMs, the same train command on every host.

    python -m scripts.launch gpt.quickstart --on local --topology cpu:4x2 --layout fully_sharded:4x2 --workdir runs/mine
    python -m scripts.launch gpt.quickstart --on slurm --topology gpu:2x4 --layout fully_sharded:2x4 --workdir /shared/runs/mine
    python -m scripts.launch gpt.gspmd_1t --on gke --topology v4:8x16x16 --workdir gs://bucket/runs/1t --image IMAGE --dry-run
    python -m scripts.launch gpt.palm_540b --on tpu-vm --topology v4:12x16x16 --workdir gs://bucket/runs/palm --zone us-central2-b

The experiment and its layout are checked against the machines first. --dry-run prints what would be submitted: an sbatch script,
a JobSet, or a shell script of gcloud commands; of --on local, the train command for each number of hosts. A run that ends with
another exit code than 0, 2, 74, 76 and 77 is started again (docs/OPERATIONS.md): on this machine, and under SLURM with --elastic,
by a supervisor that goes on with the hosts that are left and takes in those that come back. Any field of the experiment can be
overridden by its path, as in scripts.train.
"""

import shutil
from pathlib import Path

from configs import files
from configs.registry import ConfigError
from data.paths import ROOT
from scripts import cli

ENGINES = ("local", "slurm", "gke", "tpu-vm")


def name_there(name: str, engine: str) -> str:
    """Returns an experiment's name as the hosts understand it; raises ConfigError for a file that they do not have."""
    if not files.is_file(name):
        return name
    path = Path(files.absolute(name))
    if engine in ("local", "slurm"):
        return str(path)
    if not path.is_relative_to(ROOT):
        raise ConfigError(f"--on {engine}: {name} is not on the hosts, which have the checkout alone: put the file into it")
    return path.relative_to(ROOT).as_posix()


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--on", choices=ENGINES, required=True, help="who runs the job")
    parser.add_argument(
        "--topology",
        required=True,
        metavar="[Nx]GEN:AxBxC",
        help="a TPU slice, or several, as 2xv6e:16x16, or hosts and devices of each, as gpu:2x8",
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run's folder: a path, or gs://BUCKET/FOLDER")
    parser.add_argument("--data", default="", metavar="DIR", help="the prepared data; by default $SHARDZOO_DATA of the hosts")
    parser.add_argument("--restarts", type=int, default=50, metavar="N", help="start the run again at most so often")
    parser.add_argument("--image", default="", metavar="NAME", help="gke: a container image with the installed checkout")
    parser.add_argument("--zone", default="", metavar="ZONE", help="tpu-vm: the zone of Google Cloud")
    parser.add_argument("--spot", action="store_true", help="gke, tpu-vm: machines that may be taken back")
    parser.add_argument("--elastic", action="store_true", help="slurm: go on with fewer nodes while some are lost")
    parser.add_argument(
        "--returns-after", type=float, default=0, metavar="S", help="local: a lost process's host is back after so many seconds"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    args, overrides = parser.parse_known_args()
    e = cli.chosen(args, overrides)

    from scripts.launching import elastic, gke, job, slurm, tpu_vm

    machines = job.machines_of(args.topology)
    job.check(e, machines)
    selected = [name_there(args.experiment, args.on), *(["--layout", args.layout] if args.layout else [])]
    selected += [f"--{flag}" for flag in ("synthetic", "tiny") if getattr(args, flag)]
    requested = job.Job(e, (*selected, *overrides), machines, args.workdir, args.data, args.restarts)
    if args.on == "local":
        if args.dry_run:
            print(elastic.supervised(requested).to_json())
            return 0
        return elastic.run_here(requested, args.returns_after)
    if args.on == "slurm":
        engine, text = slurm, slurm.script(requested, args.elastic)
    elif args.on == "gke":
        engine, text = gke, gke.script(requested, args.image, args.spot)
    else:
        engine, text = tpu_vm, tpu_vm.script(requested, args.zone, args.spot)
    if args.dry_run:
        print(text, end="")
        return 0
    if not shutil.which(engine.TOOL):
        raise ConfigError(f"--on {args.on}: no command {engine.TOOL!r} here; --dry-run prints what it would be given")
    return engine.submit(requested, text)


if __name__ == "__main__":
    cli.run(main)
