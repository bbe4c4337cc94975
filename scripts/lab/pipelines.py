"""Compares pipeline schedules: temporary memory of the compiled training step, and bubbles counted in ticks.

    python -m scripts.lab.pipelines
    python -m scripts.lab.pipelines --stages 8 --microbatches 16,64,256 --json

Compiles (nothing runs) a small GPT in 8 stages on simulated devices with embedding and loss in the program: GPipe by
differentiation, 1F1B and interleaved 1F1B. Memory is the compiler's own analysis of temporary buffers on one device.
"""

import dataclasses
import json

from models.parts.nested import changed
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--stages", type=int, default=8, help="of the pipeline, a simulated device each; 8")
    parser.add_argument("--microbatches", type=cli.numbers, default=[16, 64, 256], help="comma-separated")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    cli.use_devices(cli.SIMULATED)
    head = f"{'schedule':22} {'p':>2} {'v':>2} {'m':>4} {'temporary MiB':>14} {'of GPipe':>9}"
    print("" if args.json else f"{head} {'ticks':>6} {'idle':>7} {'papers':>7}")
    for m in args.microbatches:
        gpipe = 0
        for name in ("gpipe", "pipeline_1f1b", "pipeline_interleaved"):
            row = measure(name, args.stages, m)
            gpipe = gpipe or row["temporary_bytes"]
            row["of_gpipe"] = round(row["temporary_bytes"] / gpipe, 3)
            if args.json:
                print(json.dumps(row), flush=True)
                continue
            memory = f"{row['temporary_bytes'] / 2**20:14,.2f} {row['of_gpipe']:9.2f}"
            shape = f"{name:22} {row['stages']:2} {row['chunks']:2} {m:4}"
            print(f"{shape} {memory} {row['ticks']:6} {row['idle']:7.2%} {row['papers']:7.2%}", flush=True)
    return 0


def measure(name: str, stages: int, microbatches: int) -> dict:
    """Returns the temporary bytes of the compiled step on a device, the ticks of its schedule, and its bubble: counted, and
    (p - 1) / (v m)."""
    import jax

    from configs import registry
    from models.families import family_of
    from models.sharding.pipelines.schedule import Schedule
    from trainers import step
    from trainers.plan import make_plan

    e = registry.tiny(cli.synthetic(registry.load("gpt.quickstart")))
    model = changed(
        e.model,
        {
            "layers": 2 * stages,
            "model_dim": 128,
            "feed_forward.hidden_dim": 512,
            "attention.heads": 4,
            "attention.head_dim": 32,
            "vocab": 2048,
            "dropout": 0.0,
        },
    )
    execution = dataclasses.replace(e.execution, remat="full")
    data = dataclasses.replace(e.data, batch_size=microbatches, length=128)
    layout = family_of(e.model).layouts[name](stages, 1, 1, microbatches=microbatches)
    e = dataclasses.replace(e, model=model, data=data, layout=layout, execution=execution)
    compiled = step.compile_step(make_plan(e, jax.devices()[:stages]))
    chunks = layout.pipelines[0][1].chunks
    s = Schedule(stages, chunks, microbatches)
    return {
        "schedule": name,
        "stages": stages,
        "chunks": chunks,
        "microbatches": microbatches,
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,  # pyright: ignore[reportOptionalMemberAccess]
        "ticks": s.ticks,
        "idle": s.idle(),
        "papers": s.bubble,
    }


if __name__ == "__main__":
    cli.run(main)
