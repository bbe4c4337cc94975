"""MaxText's own step of published recipes, compiled by its ahead-of-time command and priced as plans are.

    python -m scripts.lab.peers.maxtext_plan                    # all recipes, beside this project's steps of the same runs
    python -m scripts.lab.peers.maxtext_plan v6e_llama31_8b --folder runs/maxtext --json

Needs `make setup DEVICE=plan` and `make .venv-maxtext/.installed`, into which `pip install libtpu` has brought the same compiler.
Recipes are those of tpu-recipes and of MaxText's benchmarks, by the names of the calibration's points; the compiler's options
are this project's on both sides. Compiled programs stay in the folder, so that a recipe is not compiled twice.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_BLOCKS = (
    "block_q",
    "block_kv",
    "block_kv_compute",
    "block_q_dkv",
    "block_kv_dkv",
    "block_kv_dkv_compute",
    "block_q_dq",
    "block_kv_dq",
)
_COMMON = {"ici_fsdp_parallelism": "-1", "attention": "flash", "dataset_type": "synthetic", "use_iota_embed": "true"}
_COMMON |= {"enable_checkpointing": "false"} | {f"sa_{name}": "2048" for name in _BLOCKS}


def _kept(where: str, *names: str) -> dict[str, str]:
    return {"remat_policy": "custom"} | dict.fromkeys(names, where)


_QKV = ("decoder_layer_input", "query_proj", "key_proj", "value_proj")
_DROPPING = {"megablox": "false", "sparse_matmul": "false", "capacity_factor": "1.25"}
_FUSED = {"sa_use_fused_bwd_kernel": "true"}


def _recipe(model: str, rows: int, length: int, *settings: dict[str, str]) -> dict[str, str]:
    shapes = {"model_name": model, "per_device_batch_size": str(rows), "max_target_length": str(length)}
    return _COMMON | shapes | {name: value for each in settings for name, value in each.items()}


RECIPES = {
    "v6e_llama31_8b": _recipe("llama3.1-8b", 4, 8192, _kept("offload", *_QKV, "out_proj"), _FUSED),
    "v6e_llama31_70b": _recipe("llama3.1-70b", 5, 8192, _kept("offload", *_QKV), _FUSED),
    "v6e_llama2_70b": _recipe(
        "llama2-70b",
        2,
        4096,
        {"remat_policy": "qkv_proj_offloaded", "ici_fsdp_parallelism": "1", "ici_fsdp_transpose_parallelism": "-1"},
        {"sa_block_q": "1024"},
    ),
    "v6e_gpt3_175b": _recipe("gpt3-175b", 3, 2048, {"remat_policy": "full", "sa_block_q": "1024"}),
    "v6e_mixtral_8x7b": _recipe("mixtral-8x7b", 12, 4096, _kept("offload", *_QKV, "out_proj"), _DROPPING),
    "v5p_128b": {name: value for name, value in _COMMON.items() if not name.startswith("sa_block")}
    | {"global_parameter_scale": "128", "per_device_batch_size": "1", "max_target_length": "2048"}
    | {"remat_policy": "minimal", "ici_tensor_parallelism": "8"},
    "v5p_llama31_405b": _recipe("llama3.1-405b", 2, 8192, _kept("offload", "context", "mlpwo"), {"num_vocab_tiling": "4"}),
    "tpu7x_llama31_70b": _recipe(
        "llama3.1-70b",
        2,
        8192,
        _kept("device", "decoder_layer_input", "context", "query_proj", "key_proj", "value_proj", "qkv_proj"),
        _FUSED | {"opt_type": "adamw", "mu_dtype": "bfloat16", "use_tokamax_splash": "true"},
        {"sa_q_layout": "SEQ_MINOR", "sa_k_layout": "SEQ_MINOR"},
    ),
}


def compile_recipe(settings: list[str], topology: dict[str, Any], out: Path) -> None:
    """Compiles a step in MaxText's own environment; writes the program's text, and its mesh and memory as JSON beside it.

    Args:
      settings: `name=value` of MaxText's command line.
      topology: keywords of JAX's `get_topology_desc`, those of plans, in place of MaxText's own.
    """
    from jax.experimental.topologies import get_topology_desc
    from maxtext.trainers.pre_train import train_compile  # pyright: ignore[reportMissingImports]

    compile_step = train_compile.jit_and_compile

    def kept(func: Any, args: Any, kwargs: Any, mesh: Any, *others: Any, **more: Any) -> Any:
        compiled = compile_step(func, args, kwargs, mesh, *others, **more)
        memory = compiled.memory_analysis()
        described = {
            "mesh": {axis: size for axis, size in mesh.shape.items() if size > 1},
            "places": [[*device.coords, getattr(device, "core_on_chip", 0)] for device in mesh.devices.flat],
            "peak": memory.peak_memory_in_bytes,
            "host": memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes,
        }
        out.with_suffix(".json").write_text(json.dumps(described))
        out.write_text(compiled.as_text())
        return compiled

    train_compile.jit_and_compile = kept
    train_compile.get_topology_desc = lambda *_, **__: get_topology_desc(platform="tpu", **topology)
    train_compile.main(["train_compile", *settings])


def price_recipe(name: str, folder: Path, python: Path) -> dict[str, Any]:
    """Returns a recipe's modelled step and memory beside those of this project's step of the same run, in plain values."""
    from trainers.hlo import parsing
    from trainers.pods import calibration, libtpu
    from trainers.pods.points import POINTS
    from trainers.pods.price import price
    from trainers.runtime.chips import GIB, parse_slice

    point = POINTS[name]
    pod = parse_slice(point.topology)
    text = folder / f"{name}.hlo.txt"
    if not text.exists():
        options = " ".join(f"--{key}={str(value).lower()}" for key, value in pod.chip.option_set(point.options).items())
        cores = pod.devices * (2 if pod.chip.config == "megacore" else 1)  # by which MaxText names slices
        settings = {"compile_topology": f"{pod.chip.name}-{cores}", "compile_topology_num_slices": "1"}
        settings |= {"compile_xla_flags": options} | RECIPES[name]
        settings |= {"run_name": name, "base_output_directory": str(folder), "skip_jax_distributed_system": "true"}
        wrap = pod.wrap if pod.chip.torus == 3 else (*pod.wrap, False)
        topology = {
            "topology_name": pod.name,
            "chip_config_name": pod.chip.config,
            "wrap": wrap,
            "chips_per_host_bounds": (2, 2, 1),
        }
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--inside", str(text), json.dumps(topology), *(f"{key}={value}" for key, value in settings.items())]
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | libtpu.ENVIRONMENT
        subprocess.run([python, "-m", "scripts.lab.peers.maxtext_plan", *arguments], check=True, env=environment)
    described = json.loads(text.with_suffix(".json").read_text())
    places = [tuple(place[: len(pod.dims)]) for place in described["places"]]
    priced = price(parsing.parse(text.read_text()), pod, places, described["mesh"])
    ours = {row["name"]: row for row in calibration.stored()}.get(name)
    return {
        "recipe": name,
        "topology": point.topology,
        "maxtext_step_s": priced.step_s,
        "maxtext_gib": described["peak"] * pod.chip.devices / GIB,
        "maxtext_exposed": priced.exposed,
        "problems": list(priced.problems),
        "our_step_s": ours and ours["modelled_step_s"],
    }


def main(arguments: list[str] | None = None) -> int:
    from scripts import cli
    from trainers.pods import libtpu
    from trainers.text_table import text_table

    parser = cli.parser(__doc__)
    parser.add_argument("recipes", nargs="*", choices=[[], *RECIPES], default=[], help="those to compile; all if none is named")
    parser.add_argument("--folder", type=cli.folder, default=Path("runs/maxtext"), help="of the compiled programs")
    parser.add_argument("--python", type=Path, default=Path(".venv-maxtext/bin/python"), help="of MaxText's environment")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    libtpu.prepare()
    rows = [price_recipe(name, args.folder.resolve(), args.python) for name in args.recipes or RECIPES]
    if args.json:
        cli.print_json(rows)
        return 0
    cells = [
        [r["recipe"], r["topology"], f"{r['maxtext_step_s']:.2f}", f"{r['maxtext_gib']:.1f}"]
        + ([f"{r['our_step_s']:.2f}", f"{r['maxtext_step_s'] / r['our_step_s']:.2f}"] if r["our_step_s"] else ["-", "-"])
        for r in rows
    ]
    head = ["recipe", "slice", "MaxText, s", "GiB", "ours, s", "MaxText / ours"]
    print("\n".join(text_table(head, cells, range(2, 6))))
    for r in rows:
        for problem in r["problems"]:
            print(f"{r['recipe']}: {problem}")
    return 0


def _inside() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", type=Path)
    parser.add_argument("topology", type=json.loads)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    compile_recipe(args.settings, args.topology, args.inside)


if __name__ == "__main__":
    sys.exit(_inside() if "--inside" in sys.argv else main())
