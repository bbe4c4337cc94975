"""MLPerf's benchmarks of the rounds 5.1 to 6.1, by MLPerf's checkers: rules, miniature runs, submissions, predicted minutes."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.mllog import mllog
from mlperf_logging.rcp_checker import rcp_checker
from mlperf_logging.system_desc_checker import system_desc_checker

from configs import registry
from configs.experiment import Experiment, HeldOut, Lora
from configs.optimizers import AdamW, Constant
from configs.overrides import override
from configs.registry import ConfigError
from data.reading import packing
from data.text import encoding
from data.text.config import TextData
from data.vocabularies import tokenizers
from models.errors import UserError
from models.parts.nested import changed
from scripts import mlperf_report
from scripts.lab import mlperf_minutes as minutes_command
from tests.helpers.caches import write_text_cache
from tests.helpers.runs import run
from trainers import trainer
from trainers.measure import mlperf_benchmarks, mlperf_log, mlperf_minutes, mlperf_package, mlperf_rules, mlperf_system
from trainers.measure.mlperf_benchmarks import BENCHMARKS
from trainers.measure.mlperf_log import Request
from trainers.measure.mlperf_rules import complaints, read, status, value, verdict

NAMES = ["llama31_8b", "gpt_oss_20b", "deepseekv3_671b", "llama2_70b_lora"]
EACH = [(name, ruleset) for name in NAMES for ruleset in BENCHMARKS[name].rulesets]


def full(name: str, ruleset: str = "") -> Experiment:
    """The experiment as the ruleset wants it: DeepSeek-V3 is evaluated from the first step under 6.0."""
    e = registry.load(f"mlperf.{name}")
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, cache="mine"))
    return override(e, ["--train.eval-from", "0"]) if (name, ruleset) == ("deepseekv3_671b", "6.0.0") else e


def values(name: str, ruleset: str = "", **changes: Any) -> dict[str, Any]:
    """Returns the values of a log of the whole benchmark before the run starts."""
    benchmark = BENCHMARKS[name]
    return {
        "submission_benchmark": name,
        "submission_division": "closed",
        "submission_org": "us",
        "submission_platform": "16x TPU v5p",
        "ruleset": mlperf_rules.ruleset(benchmark, ruleset),
        "experiment": f"mlperf.{name}",
        "config_filename": registry.file_of(f"mlperf.{name}"),
        **mlperf_rules.settings(full(name), benchmark),
        "train_samples": 100,
        "eval_samples": 1024,
        "cache_clear": False,
    } | changes


@pytest.mark.parametrize("name", NAMES)
def test_experiments_name_their_benchmark(name):
    """The field decides, not the kind of data; random tokens have nothing to score; a name that is none has a nearest one."""
    e = full(name)
    assert mlperf_rules.benchmark(e) is BENCHMARKS[name]
    assert mlperf_rules.benchmark(registry.load(f"mlperf.{name}")) is mlperf_benchmarks.THROUGHPUT
    wrong = override(e, ["--train.benchmark", f"{name}x"])
    with pytest.raises(ConfigError, match=rf"{name}x': no such benchmark; did you mean '{name}'"):
        mlperf_rules.benchmark(wrong)


@pytest.mark.parametrize(("name", "ruleset"), EACH)
def test_a_full_size_experiment_is_refused_by_nothing(name, ruleset):
    """Before training: the made-up log passes MLPerf's checker, and nothing that the rules fix beside it is another."""
    e, benchmark = full(name, ruleset), BENCHMARKS[name]
    request = Request(folder=Path("none"), division="closed", ruleset=ruleset)
    mlperf_log._check_in_advance(request, e, benchmark, values(name, ruleset))


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("llama31_8b", ["--optimizer.b2", "0.999"], r"opt_adamw_beta_2 is 0.999, must be: v\['value'\] == 0.95"),
        ("llama31_8b", ["--optimizer.schedule.floor", "0"], r"opt_end_learning_rate is 0.0, must be 4e-05 \(rules\)"),
        (
            "llama31_8b",
            ["--train.eval-every", "100"],
            "interval of evaluations is 100 steps, must be 768.*--train.eval-every 768",
        ),
        ("gpt_oss_20b", ["--data.length", "4096"], "max_sequence_length is 4096, must be"),
        ("deepseekv3_671b", ["--train.eval-from", "0"], "eval_accuracy is .*must be"),
        ("deepseekv3_671b", ["--optimizer.schedule.peak", "1e-4"], "opt_base_learning_rate is 0.0001"),
        ("llama2_70b_lora", ["--train.finetune.lora.alpha", "16"], r"lora_alpha is 16.0, must be 32 \(rules\)"),
        ("llama2_70b_lora", ["--train.eval-from", "48"], "first evaluation is 48 steps, must be 192"),
    ],
)
def test_what_the_rules_fix_is_refused(name, flags, said):
    """In the closed division, before training, by the checker or by what stands in the rules alone."""
    e = override(full(name), flags)
    changes = mlperf_rules.settings(e, BENCHMARKS[name])
    with pytest.raises(ConfigError, match=said):
        mlperf_log._check_in_advance(
            Request(folder=Path("none"), division="closed"), e, BENCHMARKS[name], values(name, **changes)
        )


def test_a_benchmark_has_rulesets():
    """A round without it is refused in a line with those that have it; by default the newest is followed."""
    assert mlperf_rules.ruleset(BENCHMARKS["llama31_8b"]) == "6.1.0" and mlperf_rules.ruleset(mlperf_benchmarks.BERT) == "4.1.0"
    with pytest.raises(ConfigError, match=r"'5.1.0': gpt_oss_20b is a benchmark of 6.0.0, 6.1.0"):
        mlperf_rules.ruleset(BENCHMARKS["gpt_oss_20b"], "5.1.0")


def test_evaluations_are_where_the_rules_have_them():
    """12,288 rows in whole batches; DeepSeek's first one by 6.1's formula; the fourth of the fine-tuning is its first."""
    assert BENCHMARKS["llama31_8b"].evaluations(96, "6.1.0") == (128, 128)
    assert BENCHMARKS["llama31_8b"].evaluations(40, "6.1.0") == (308, 308)
    assert BENCHMARKS["deepseekv3_671b"].evaluations(15_360, "6.1.0") == (1, 43)
    assert BENCHMARKS["deepseekv3_671b"].evaluations(16_384, "6.0.0") == (1, 1)
    assert BENCHMARKS["llama2_70b_lora"].evaluations(8, "6.1.0") == (48, 192)


# --- miniature runs ----------------------------------------------------------------------------------------------


SENTENCE = "the old red cat sees the small bird and the dog finds the big house"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with a cache of one sentence, many times, in rows of 16: 64 to learn, 1024 held out."""
    folder = tmp_path_factory.mktemp("data")
    cache = folder / "caches" / "mine"
    write_text_cache(cache, tokenizers.train_bpe, 300, 16)
    rows, _ = encoding.rows_of([SENTENCE] * 64, tokenizers.Tokenizer(cache), 16)
    packing.write_rows(cache / "train" / "toy.array_record", rows)
    line = json.dumps({"id": "0", "origin": "toy", "text": SENTENCE}) + "\n"
    (cache / "test.jsonl").write_text(line * 1024)
    return folder


def miniature(name: str) -> Experiment:
    """The experiment by its model's `tiny()`, on rows of 16; it is evaluated where DeepSeek's rules have the first evaluation."""
    e = registry.tiny(registry.load(f"mlperf.{name}"))
    return dataclasses.replace(
        e,
        model=changed(e.model, {"vocab": 320}),
        data=TextData(cache="mine", batch_size=16, length=16),
        optimizer=AdamW(schedule=Constant(value=1e-2)),
        eval=HeldOut(split="test", rows=1024, batch_size=256),
        execution=dataclasses.replace(e.execution, dtype="float32", loss_chunks=1),
        train=dataclasses.replace(e.train, steps=100, microbatches=1, eval_every=1, eval_from=43, log_every=20),
    )


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_miniature_run_makes_a_log_that_passes(name, data, tmp_path, monkeypatch):
    """From start to the target, which the first evaluation meets; each ruleset's checker accepts the log as it is.

    Its settings are those of the whole experiment, since the rules fix sizes that no miniature has: rows, batch, the interval of
    evaluations. Events, scores, rows evaluated, times and order are the run's. The fine-tuning starts from such a model, trained.
    """
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e, benchmark, whole = miniature(name), BENCHMARKS[name], full(name)
    if e.train.finetune.lora.rank:
        base = e.with_finetune(lora=Lora())
        assert run(dataclasses.replace(base, train=dataclasses.replace(base.train, steps=43)), tmp_path / "base") == trainer.DONE
        e = e.with_finetune(init_from=str(tmp_path / "base"))
    settings, evaluations = mlperf_rules.settings(whole, benchmark), mlperf_rules.first_evaluation(whole)
    monkeypatch.setattr(mlperf_rules, "settings", lambda *_: settings)
    monkeypatch.setattr(mlperf_rules, "first_evaluation", lambda _: evaluations)
    assert run(e, tmp_path / "run", Request(folder=tmp_path / "logs", division="closed", org="us")) == trainer.DONE
    path = tmp_path / "logs" / "result_0.txt"
    events = read(path)
    assert status(events) == "success" and value(events, "ruleset") == "6.1.0" and value(events, "eval_samples") == 1024
    assert value(events, "config_filename") == f"configs/mlperf_language.py:{name}"
    assert [event.key for event in events[-3:]] == ["eval_accuracy", "eval_stop", "run_stop"]
    assert 0 < events[-3].value <= benchmark.target
    assert events[-1].metadata["samples_count"] == 43 * settings["global_batch_size"]
    assert [event.time for event in events] == sorted(event.time for event in events)
    for ruleset in benchmark.rulesets:
        copy = tmp_path / f"result_{ruleset}.txt"
        copy.write_text(path.read_text().replace('"value": "6.1.0"', f'"value": "{ruleset}"'))
        assert verdict(copy) == []
    assert system_desc_checker.check_system_desc(str(tmp_path / "logs" / mlperf_system.FILE), "training", "6.1.0")[0]


def test_a_second_attempt_has_another_seed(tmp_path):
    """MLPerf refuses two closed attempts of one seed, so the second is refused before it trains."""
    folder = tmp_path / "logs"
    request = Request(folder=folder, division="closed")
    folder.mkdir()
    with mlperf_log.Attempt(BENCHMARKS["llama31_8b"], 16, mlperf_log.new_log(folder)) as log:
        log.describe(0.0, values("llama31_8b"))
        log.start()
    with pytest.raises(ConfigError, match=r"--train.seed 0: .*result_0.txt has it.*nearest is 1"):
        mlperf_log._check_seed(request, values("llama31_8b"))
    mlperf_log._check_seed(request, values("llama31_8b", seed=1))
    mlperf_log._check_seed(dataclasses.replace(request, division="open"), values("llama31_8b"))


# --- submissions -------------------------------------------------------------------------------------------------


@pytest.fixture
def submission(tmp_path, monkeypatch):
    """Writes a submission of made-up runs that take so many rows to the target."""
    now = [0.0]
    monkeypatch.setattr(mllog, "_current_time_ms", lambda: int(1000 * now[0]))

    def write(name: str, samples: list[int], ruleset: str = "", **changes: Any) -> Path:
        benchmark, folder = BENCHMARKS[name], tmp_path / "us"
        assert benchmark.target
        logs = folder / "results" / "pod" / name
        for seed, count in enumerate(samples):
            described = values(name, ruleset, **{"seed": seed} | changes)
            batch = described["global_batch_size"]
            every, first = benchmark.evaluations(batch, described["ruleset"])
            with mlperf_log.Attempt(benchmark, batch, mlperf_log.new_log(logs)) as log:
                log.describe(now[0], described)
                log.start()
                for log.step in (first, max(first + every, count // batch)):
                    now[0] += 60.0
                    log.stats(2.0, 1.0)
                    log.eval_start()
                    log.eval_stop({benchmark.metric: 9.0 if log.step == first else benchmark.target}, more=log.step == first)
        mlperf_system.write(logs, values(name, ruleset))
        return folder

    return write


def reference(name: str, ruleset: str = "6.1.0") -> list[int]:
    """As many of the reference's own runs, those in the middle, as a submission has."""
    benchmark = BENCHMARKS[name]
    point = mlperf_minutes.at(benchmark, ruleset, registry.load(f"mlperf.{name}").data.batch_size)
    beyond = (len(point.samples) - benchmark.runs) // 2
    return list(point.samples[beyond : beyond + benchmark.runs])


@pytest.mark.parametrize(("name", "ruleset"), [(name, "6.1.0") for name in NAMES] + [("llama31_8b", "5.1.0")])
def test_a_submission_of_the_references_runs_passes(name, ruleset, submission):
    """The package checker, and the checker of convergence in it, accept runs that take as long as the reference's."""
    folder = submission(name, reference(name, ruleset), ruleset)
    logs = folder / "results" / "pod" / name
    before = sorted(path.name for path in logs.iterdir())
    checked = mlperf_package.check(folder)
    assert checked.reasons == [] and checked.ruleset == ruleset
    assert any(note.startswith("RCP Test Passed") for note in checked.notes)
    assert sorted(path.name for path in logs.iterdir()) == before  # nothing is written into the submission
    assert rcp_checker.check_directory(str(logs), "training", ruleset, False, False, rcp_pass="pruned_rcps")[0]


def test_the_report_checks_a_submission(submission, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mlperf_report", str(submission("deepseekv3_671b", reference("deepseekv3_671b")))])
    assert mlperf_report.main() == 0
    text = capsys.readouterr().out
    assert "score: 120.00 s" in text and text.endswith("RCP Test Passed: RCP found\npasses MLPerf's package checker 6.1.0\n")


def refusals(folder: Path) -> str:
    return "\n".join(mlperf_package.check(folder).reasons)


def test_a_submission_that_is_none_is_refused_with_reasons(submission, monkeypatch, capsys):
    """Too few runs, two of one seed, too soon, a damaged log, no description of the system: a line each, and exit code 1."""
    folder = submission("deepseekv3_671b", reference("deepseekv3_671b"))
    logs = folder / "results" / "pod" / "deepseekv3_671b"

    saved = (logs / "result_1.txt").read_text()
    (logs / "result_1.txt").unlink()
    assert "found 2, expected 3" in refusals(folder)
    (logs / "result_1.txt").write_text(saved.replace('"key": "seed", "value": 1', '"key": "seed", "value": 2'))
    assert "logs seed 2" in refusals(folder)
    (logs / "result_1.txt").write_text(saved.replace('"value": 0.95', '"value": 0.5'))
    assert "result_1.txt: opt_adamw_beta_2 is 0.5, must be: v['value'] == 0.95" in refusals(folder)
    monkeypatch.setattr("sys.argv", ["mlperf_report", str(folder), "--json"])
    assert mlperf_report.main() == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["submission"]["reasons"] and len(shown["folders"]) == 1
    (logs / "result_1.txt").write_text(saved)
    assert refusals(folder) == ""
    (folder / "systems" / "pod.json").write_text('{"division": "closed", "status": "sold out"}')
    assert "System description checker failed" in refusals(folder)
    (folder / "systems" / "pod.json").unlink()
    assert refusals(folder) == "systems/pod.json is missing, the system's description"
    shutil.rmtree(logs)
    with pytest.raises(UserError, match="no logs in results/SYSTEM/BENCHMARK/"):
        mlperf_package.check(folder)


def test_runs_that_converge_too_soon_are_refused(submission):
    """Some steps before the reference's: the checker of convergence says so, in words."""
    folder = submission("deepseekv3_671b", [44 * 16_384] * 3)
    assert "RCP Test Failed: RCP found: the target is reached in fewer samples" in refusals(folder)


def test_a_log_of_another_ruleset_is_one_line(submission, monkeypatch, capsys):
    folder = submission("llama31_8b", reference("llama31_8b"), "5.1.0")
    assert complaints(folder / "results/pod/llama31_8b/result_0.txt") == []
    (line,) = complaints(folder / "results/pod/llama31_8b/result_0.txt", "6.1.0")
    assert line == "the log follows ruleset 5.1.0, and is to be checked by 6.1.0"
    (line,) = mlperf_package.check(folder, "6.0.0").reasons
    assert line.endswith("result_0.txt follows 5.1.0, and the submission is checked by ruleset 6.0.0")
    monkeypatch.setattr("sys.argv", ["mlperf_report", str(folder), "--ruleset", "7"])
    with pytest.raises(UserError, match="no such ruleset"):
        mlperf_report.main()


# --- predicted minutes -------------------------------------------------------------------------------------------


def test_minutes_are_samples_times_steps():
    """20 runs of Llama 3.1 8B at batch 16: 17 of 159,744 rows and 3 of 172,032; the score leaves out the ends."""
    benchmark = BENCHMARKS["llama31_8b"]
    point = mlperf_minutes.at(benchmark, "6.1.0", 16)
    assert point.mean == pytest.approx((16 * 159_744 + 2 * 172_032) / 18)
    result = mlperf_minutes.predict(benchmark, "6.1.0", point, 2.0, error=0.1, evaluation=30.0)
    assert result.steps == point.mean / 16
    assert result.evaluations == pytest.approx(point.mean / 12_288)
    assert result.expected == pytest.approx((result.steps * 2 + result.evaluations * 30) / 60)
    assert result.low == pytest.approx((9984 * 2 + 13 * 30) * 0.9 / 60)
    assert result.high == pytest.approx((10_752 * 2 + 14 * 30) * 1.1 / 60)


def test_minutes_of_a_batch_without_a_point_are_refused():
    with pytest.raises(UserError, match=r"batch 100: .* 16, 32, 64, 96, 128; the nearest is 96"):
        mlperf_minutes.at(BENCHMARKS["llama31_8b"], "6.1.0", 100)
    with pytest.raises(UserError, match="no reference convergence points of throughput"):
        mlperf_minutes.points(BENCHMARKS["throughput"], "6.1.0")


def test_the_command_reads_a_plan(tmp_path, capsys):
    """A plan's step, as long as its calibration expects; the line says that it is modelled, and of which slice."""
    plan = {"experiment": "mlperf.llama31_8b", "topology": "v5p:2x2x4", "modelled_step_s": 2.0, "error_pct": 10.0}
    plan |= {"batch_size": 16, "problems": []}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan | {"modelled_mfu": 0.5, "expected_mfu": 0.4}))
    minutes_command.main(["mlperf.llama31_8b", "--plan", str(path), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["step_s"] == 2.5 and shown["error"] == 0.1 and shown["of"] == "modelled on v5p:2x2x4"
    minutes_command.main(["mlperf.llama31_8b", "--seconds", "2.5", "--error", "0.1"])
    assert f"{shown['expected']:.1f} minutes ({shown['low']:.1f} to {shown['high']:.1f})" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no plan of mlperf.gpt_oss_20b"):
        minutes_command.main(["mlperf.gpt_oss_20b", "--plan", str(path)])
    with pytest.raises(UserError, match=r"of 16 rows, not of data.batch_size=64"):
        minutes_command.main(["mlperf.llama31_8b", "--data.batch-size", "64", "--plan", str(path)])
    with pytest.raises(UserError, match=r"--error 0.1: is of --seconds"):
        minutes_command.main(["mlperf.llama31_8b", "--error", "0.1", "--plan", str(path)])
    path.write_text(json.dumps(plan | {"modelled_mfu": 0.5, "expected_mfu": 0.4, "problems": ["a loop was counted once"]}))
    with pytest.raises(UserError, match=r"plan\.json: a loop was counted once"):
        minutes_command.main(["mlperf.llama31_8b", "--plan", str(path)])
    with pytest.raises(UserError, match="one of them"):
        minutes_command.main(["mlperf.gpt_oss_20b"])
    with pytest.raises(UserError, match="--seconds nan"):
        minutes_command.main(["mlperf.llama31_8b", "--seconds", "nan"])
    with pytest.raises(UserError, match=r"gpt.quickstart names no benchmark"):
        minutes_command.main(["gpt.quickstart", "--seconds", "1"])
