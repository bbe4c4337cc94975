"""MaxText's own step of published recipes, compiled by its ahead-of-time command and priced as plans are.

    python -m scripts.lab.peers.maxtext_plan                    # all recipes, beside this project's steps of the same runs
    python -m scripts.lab.peers.maxtext_plan v5p_128b --folder runs/maxtext --json

Needs `make setup DEVICE=plan` and `make .venv-maxtext/.installed`, into which `pip install libtpu` has brought the same compiler.
Recipes are those of tpu-recipes and of MaxText's configurations and benchmarks, by the names of the calibration's points; the
compiler's options are this project's on both sides. Two steps of this project stand beside MaxText's: the calibration's, with
the recipe's own mesh, recomputation and options, and that of the best plan of the same model, batch and slice (`BEST`). Where
that has other options of the compiler, MaxText's step is compiled with them too. Compiled programs of MaxText stay in the folder,
and reports of plans with those of `scripts.plan --search`, so that nothing is compiled twice; after a change of a recipe or of a
compiler take another folder.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
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


def _v5p(scale: int, rows: int, tensor: int, remat: str) -> dict[str, str]:
    """Returns the settings of MaxText's v5p configurations, whose kernel has blocks of the default size."""
    settings = {name: value for name, value in _COMMON.items() if not name.startswith("sa_block")}
    settings |= {"global_parameter_scale": str(scale), "per_device_batch_size": str(rows), "max_target_length": "2048"}
    return settings | {"remat_policy": remat, "ici_tensor_parallelism": str(tensor)}


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
    "v5p_64b": _v5p(64, 3, 4, "minimal"),
    "v5p_128b": _v5p(128, 1, 8, "minimal"),
    "v5p_128b_256": _v5p(128, 1, 8, "minimal"),
    "v5p_256b": _v5p(256, 1, 8, "minimal"),
    "v5p_512b": _v5p(512, 2, 8, "full"),
    "v5p_1024b": _v5p(1024, 2, 16, "full"),  # the point's mesh has 8
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


@dataclasses.dataclass(frozen=True)
class Best:
    """The best plan that is known of a recipe's model, batch and slice: what differs from the calibration's point.

    Attributes:
      layout: name of one of the decoders' layouts.
      mesh: its sizes.
      remat: what the backward pass keeps of a layer, as in `Execution`.
      torus: where mesh axes lie, as in `Layout`; the layout's own placement if it is empty.
      loss_chunks: parts of a row whose logits exist at the same time.
      options: a set of compiler options (trainers/runtime/chips.py); the point's if it is empty.
    """

    layout: str
    mesh: tuple[int, ...]
    remat: str
    torus: tuple[tuple[str, str], ...] = ()
    loss_chunks: int = 4
    options: str = ""

    def experiment(self, e: Any) -> Any:
        """Returns the experiment of a point (configs.experiment.Experiment) under this plan."""
        from models.families import family_of

        layout = family_of(e.model).layouts[self.layout](*self.mesh)
        execution = dataclasses.replace(e.execution, remat=self.remat, offload="none", loss_chunks=self.loss_chunks)
        return dataclasses.replace(e, execution=execution, layout=dataclasses.replace(layout, torus=self.torus))


_LARGER_LIMIT = "scoped_vmem"  # memory on the chip for one operation, by which tiles of products grow
BEST = {
    "v5p_64b": Best("fully_sharded", (64, 1), "attention_in+context+attention_out+up", options=_LARGER_LIMIT),
    "v5p_128b": Best("two_d", (32, 4), "dots", torus=(("data", "xz"), ("model", "y")), options=_LARGER_LIMIT),
    "v5p_128b_256": Best("two_d", (64, 4), "dots", options=_LARGER_LIMIT),
    "v5p_256b": Best("two_d", (64, 8), "attention_in+context+attention_out+gate+up", options=_LARGER_LIMIT),
    "v5p_512b": Best("two_d", (256, 2), "attention_in", options=_LARGER_LIMIT),
}


def compile_recipe(settings: list[str], topology: dict[str, Any], out: Path) -> None:
    """Compiles a step in MaxText's own environment; writes the program's text, and its mesh and memory as JSON beside it.

    Args:
      settings: `name=value` of MaxText's command line.
      topology: keywords of JAX's `get_topology_desc`, those of plans, in place of MaxText's own.
    """
    from jax.experimental.topologies import get_topology_desc
    from maxtext.trainers.pre_train import train_compile  # pyright: ignore[reportMissingImports]

    from data.paths import write_whole

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
        write_whole(out, compiled.as_text())  # at last: a program that is there is not compiled again
        return compiled

    train_compile.jit_and_compile = kept
    train_compile.get_topology_desc = lambda *_, **__: get_topology_desc(platform="tpu", **topology)
    train_compile.main(["train_compile", *settings])


def price_recipe(name: str, folder: Path, python: Path) -> dict[str, Any]:
    """Returns a recipe's modelled step and memory beside those of this project's steps of the same run, in plain values.

    Args:
      folder: of MaxText's compiled programs; the recipe is compiled if its program is not there.
      python: MaxText's interpreter.
    """
    from trainers.pods import calibration
    from trainers.pods.points import POINTS

    point = POINTS[name]
    row: dict[str, Any] = {"recipe": name, "topology": point.topology, "options": point.options}
    row["maxtext"] = price_maxtext(name, point.options, folder, python)
    ours = {row["name"]: row for row in calibration.stored()}.get(name)
    row |= {"our_step_s": ours and ours["modelled_step_s"], "best": None, "maxtext_as_best": None}
    if best := BEST.get(name):
        planned = best_report(name)
        row["best"] = {key: planned[key] for key in _REPORTED}
        options = best.options or point.options
        row["maxtext_as_best"] = price_maxtext(name, options, folder, python) if options != point.options else row["maxtext"]
    return row


_REPORTED = (
    *("layout", "mesh", "remat", "options", "modelled_step_s", "modelled_mfu", "modelled_hfu", "parts"),
    *("hbm_gib_per_chip", "hbm_limit_gib", "exposed_communication_share", "problems"),
)


def price_maxtext(name: str, options: str, folder: Path, python: Path) -> dict[str, Any]:
    """Returns the modelled step of a recipe, compiled with a set of options: seconds, and where they go; GiB a chip; FLOPs of its
    products on each device; reasons not to trust the price."""
    from trainers.hlo import parsing
    from trainers.pods.points import POINTS
    from trainers.pods.price import price
    from trainers.runtime.chips import GIB, parse_slice

    pod = parse_slice(POINTS[name].topology)
    text = folder / f"{name}.{options}.hlo.txt"
    if not text.exists():
        _compile(name, options, text, python)
    described = json.loads(text.with_suffix(".json").read_text())
    places = [tuple(place[: len(pod.dims)]) for place in described["places"]]
    priced = price(parsing.parse(text.read_text()), pod, places, described["mesh"])
    return {
        "step_s": priced.step_s,
        "parts": {"unpriced": 0.0} | dict(priced.exposed),
        "hbm_gib_per_chip": described["peak"] * pod.chip.devices / GIB,
        "hlo_flops": priced.hlo_flops,
        "mesh": described["mesh"],
        "problems": priced.problems,
    }


def best_report(name: str) -> dict[str, Any]:
    """Returns the report of a recipe's best plan from disk, or compiles it; raises PodError if it does not fit."""
    from models.parts.attention import splash
    from trainers.pods import report
    from trainers.pods.layout_candidates import Candidate, describe
    from trainers.pods.points import POINTS
    from trainers.pods.search import Reports
    from trainers.runtime.chips import PodError, parse_slice

    point, best = POINTS[name], BEST[name]
    e, pod, options = best.experiment(point.experiment()), parse_slice(point.topology), best.options or point.options

    def evaluate(candidate: Candidate) -> dict[str, Any]:
        with contextlib.nullcontext() if point.kernel else splash.without_kernel():
            return report.plan(candidate.experiment, pod, options)[0]

    planned = Reports(pod, f"{options}, kernel {point.kernel}")(evaluate, Candidate(e, describe(e, pod)))
    if not planned["fits"]:
        raise PodError(f"the best plan of {name}: {planned['error']}")
    return planned


def _compile(name: str, options: str, text: Path, python: Path) -> None:
    """Compiles a recipe in MaxText's environment, with this project's slice and a set of its compiler options."""
    from trainers.pods import libtpu
    from trainers.pods.points import POINTS
    from trainers.runtime.chips import parse_slice

    pod = parse_slice(POINTS[name].topology)
    flags = " ".join(f"--{key}={str(value).lower()}" for key, value in pod.chip.option_set(options).items())
    cores = pod.devices * (2 if pod.chip.config == "megacore" else 1)  # by which MaxText names slices
    settings = {"compile_topology": f"{pod.chip.name}-{cores}", "compile_topology_num_slices": "1"}
    settings |= {"compile_xla_flags": flags} | RECIPES[name]
    settings |= {"run_name": name, "base_output_directory": str(text.parent), "skip_jax_distributed_system": "true"}
    topology = {
        "topology_name": pod.name,
        "chip_config_name": pod.chip.config,
        "wrap": pod.wrap if pod.chip.torus == 3 else (*pod.wrap, False),
        "chips_per_host_bounds": (2, 2, 1),
    }
    text.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["--inside", str(text), json.dumps(topology), *(f"{key}={value}" for key, value in settings.items())]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | libtpu.ENVIRONMENT
    # Its output is no part of this command's, which may be JSON.
    subprocess.run([python, "-m", "scripts.lab.peers.maxtext_plan", *arguments], check=True, env=environment, stdout=sys.stderr)


HEAD = (
    *("recipe", "slice", "MaxText, s", "GiB", "unpriced", "same options, s", "ratio"),
    *("best plan", "s", "GiB", "unpriced", "ratio", "MaxText, its options, s", "ratio"),
)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns rows of `price_recipe` as text, with a line for each reason not to trust one of them.

    Ratios are MaxText's step over ours: of the recipe as it is, and at the end with the best plan's compiler options.
    """
    from trainers.text_table import text_table

    cells = [[r["recipe"], r["topology"], *_theirs(r["maxtext"]), *_same(r), *_best(r)] for r in rows]
    lines = text_table(HEAD, cells, [at for at, name in enumerate(HEAD) if name not in ("recipe", "slice", "best plan")])
    for r in rows:
        lines += [f"{r['recipe']}, MaxText: {problem}" for problem in r["maxtext"]["problems"]]
        lines += [f"{r['recipe']}, best plan: {problem}" for problem in (r["best"] or {"problems": ()})["problems"]]
    return lines


def _theirs(maxtext: dict[str, Any]) -> list[str]:
    unpriced = maxtext["parts"]["unpriced"] / maxtext["step_s"]
    return [f"{maxtext['step_s']:.2f}", f"{maxtext['hbm_gib_per_chip']:.1f}", f"{unpriced:.1%}"]


def _same(r: dict[str, Any]) -> list[str]:
    seconds = r["our_step_s"]
    return [f"{seconds:.2f}", f"{r['maxtext']['step_s'] / seconds:.2f}"] if seconds else ["-", "-"]


def _best(r: dict[str, Any]) -> list[str]:
    if not (best := r["best"]):
        return ["-"] * 7
    seconds, with_its_options = best["modelled_step_s"], r["maxtext_as_best"]["step_s"]
    plan = [best["layout"], "x".join(str(size) for size in best["mesh"].values()), best["remat"]]
    plan += [best["options"]] if best["options"] != r["options"] else []
    figures = [f"{seconds:.2f}", f"{best['hbm_gib_per_chip']:.1f}", f"{best['parts']['unpriced'] / seconds:.1%}"]
    ratios = [f"{r['maxtext']['step_s'] / seconds:.2f}", f"{with_its_options:.2f}", f"{with_its_options / seconds:.2f}"]
    return [" ".join(plan), *figures, *ratios]


def main(arguments: list[str] | None = None) -> int:
    from scripts import cli
    from trainers.pods import libtpu

    parser = cli.parser(__doc__)
    parser.add_argument("recipes", nargs="*", choices=[[], *RECIPES], default=[], help="those to compile; all if none is named")
    parser.add_argument("--folder", type=cli.folder, default=Path("runs/maxtext"), help="of the compiled programs")
    parser.add_argument("--python", type=Path, default=Path(".venv-maxtext/bin/python"), help="of MaxText's environment")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    libtpu.prepare()
    rows = [price_recipe(name, args.folder.resolve(), args.python) for name in args.recipes or RECIPES]
    cli.print_json(rows) if args.json else print("\n".join(table(rows)))
    return 0


def _inside() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inside", type=Path)
    parser.add_argument("topology", type=json.loads)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    compile_recipe(args.settings, args.topology, args.inside)


if __name__ == "__main__":
    if "--inside" in sys.argv:
        _inside()
    else:
        from scripts import cli

        cli.run(main)
