"""Compiles an experiment's own train step for GPUs that are not there, by XLA's GPU compiler; needs `make setup DEVICE=plan-gpu`.

    python -m scripts.lab.gpu_compile gpt.gpt3_1_3b --layout data_parallel:1x1 --data.batch_size 8 --execution.remat full
    python -m scripts.lab.gpu_compile gpt.mixtral_8x7b --layout fully_sharded:2x4 --gpu h200 --hlo programs/ --json
    python -m scripts.lab.gpu_compile vit.l16 --layout data_parallel:1x1 --xla xla_gpu_enable_triton_gemm=True

It tells what the compiler knows: whether the program compiles, its memory, its products, kernels and collectives. No time is
modelled: the kernels and tiles that it would choose by measuring are its first choices. The exit code is 1 where a step does not
fit.
"""

from configs.registry import ConfigError
from scripts import cli
from trainers.gpus import chips, compiler


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--gpu", default="h100", metavar="NAME", help=f"the GPU, one of {', '.join(chips.GPUS)}")
    parser.add_argument(
        "--xla",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the compiler; by default products are cuBLAS's: xla_gpu_enable_triton_gemm=False",
    )
    parser.add_argument("--hlo", type=cli.folder, metavar="DIR", help="also write the compiled program to this folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args()
    gpu, options = chips.parse_gpu(args.gpu), dict(map(_option, args.xla))
    compiler.prepare()
    e = cli.chosen(args, overrides)

    from trainers.gpus import report

    result, text = report.compiled_report(e, gpu, options)
    if args.hlo:
        args.hlo.mkdir(parents=True, exist_ok=True)
        (args.hlo / f"{e.name}.{args.gpu}.hlo.txt").write_text(text)
    cli.print_json(result) if args.json else print(report.as_text(result))
    return 0 if result["fits"] else 1


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--xla {text!r}: write OPTION=VALUE, as xla_gpu_enable_triton_gemm=True")
    return name, value


if __name__ == "__main__":
    cli.run(main)
