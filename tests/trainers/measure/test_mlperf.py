"""MLPerf's logs of real short runs, through MLPerf's own checker."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

from configs import registry
from configs.experiment import Experiment, HeldOut
from configs.optimizers import AdamW, Constant, Lamb, Linear
from configs.registry import ConfigError
from data.features import Feature
from data.reading import packing
from data.text.config import TextData
from data.translation.config import Translate, TranslationData
from data.vocabularies import tokenizers
from data.vocabularies.sentencepiece import Vocabulary
from models.parts.attention.config import Learned
from models.parts.nested import changed
from scripts import mlperf_report
from tests.helpers.caches import write_text_cache, write_translation_cache
from tests.helpers.runs import fill_disk_of, run, with_train
from tests.helpers.wordpiece import train_wordpiece
from trainers import runlog, step, trainer
from trainers.measure import mlperf_benchmarks, mlperf_log, mlperf_rules
from trainers.measure.mlperf_benchmarks import Benchmark
from trainers.measure.mlperf_log import Request, Window
from trainers.measure.mlperf_rules import complaints, read, status, value, verdict


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> Path:
    """A data folder with toy caches: masked words and translations in rows of 16, running text in rows of 2048."""
    data = tmp_path_factory.mktemp("data")
    write_text_cache(data / "caches" / "masked", train_wordpiece, 70, 16)
    write_text_cache(data / "caches" / "long", tokenizers.train_bpe, 300, 2048)
    write_translation_cache(data / "caches", {"de": 30, "es": 12})
    write_one_translation(data / "caches" / "toy")
    return data


def write_one_translation(cache: Path) -> None:
    """Gives a toy cache of translations rows that a model can learn in seconds: every sentence means "the file 1 2"."""
    source, target = (Vocabulary(cache / f"{side}.model") for side in ("source", "target"))
    for path in (cache / "train").iterdir():
        inputs = [source.tag_id(path.stem), *source.encode("datei save"), source.eos_id]
        targets = [*target.encode("the file 1 2"), target.eos_id]
        row = [np.pad(x, (0, 16 - len(x))) for ids in (inputs, targets) for x in (ids, np.ones(len(ids)), range(len(ids)))]
        packing.write_rows(path, [np.concatenate(row).astype(np.int32)] * 16)


@pytest.fixture(autouse=True)
def data(caches, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(caches))


def bert() -> Experiment:
    """Masked words, by LAMB, with two evaluations."""
    e = registry.tiny(registry.load("bert.large_lamb"))
    return dataclasses.replace(
        e,
        model=dataclasses.replace(e.model, vocab=320),
        data=dataclasses.replace(e.data, cache="masked", length=16),
        optimizer=Lamb(schedule=Linear(peak=5e-3, steps=40, warmup=2)),
        eval=HeldOut(split="test", batch_size=8),
        train=dataclasses.replace(e.train, steps=4, log_every=2, eval_every=2),
    )


def gpt3(init_from: str = "") -> Experiment:
    """MLPerf's GPT-3 shrunk but for what its rules fix: the length of rows and the hyper-parameters."""
    whole = registry.load("gpt.mlperf_175b")
    e = registry.tiny(whole)
    return with_train(
        dataclasses.replace(
            e,
            model=changed(
                e.model,
                {
                    "positions": Learned(rows=2048),
                    "vocab": 320,
                    "layers": 1,
                    "model_dim": 8,
                    "feed_forward.hidden_dim": 8,
                    "attention.heads": 1,
                },
            ),
            data=dataclasses.replace(whole.data, cache="long", batch_size=1, length=2048),
            eval=HeldOut(split="test", limit=2, batch_size=1),
        ),
        steps=1,
        finetune={"init_from": init_from},
    )


def m4() -> Experiment:
    e = registry.tiny(registry.load("gshard_m4.quickstart"))
    return dataclasses.replace(
        e,
        model=dataclasses.replace(e.model, source_vocab=512, target_vocab=512, dropout=0.0),
        data=TranslationData(cache="toy", batch_size=16, source_length=16, target_length=16),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        eval=Translate(split="test", beams=2, max_length=16, batch_size=8),
        train=dataclasses.replace(e.train, steps=2, log_every=1),
    )


def logged(e: Experiment, tmp_path: Path, **request) -> Path:
    """The log of a run in folders of its own."""
    before = set(tmp_path.glob("logs/result_*"))
    n = len(before)
    assert run(e, tmp_path / f"run_{n}", Request(folder=tmp_path / "logs", **request)) == trainer.DONE
    (path,) = set(tmp_path.glob("logs/result_*")) - before
    return path


def rewritten(path: Path, old: str, new: str) -> Path:
    """A copy of a log with one text for another."""
    text = path.read_text()
    assert old in text
    copy = path.with_name("rewritten.txt")
    copy.write_text(text.replace(old, new))
    return copy


@pytest.fixture(scope="module")
def bert_log(caches, tmp_path_factory) -> Path:
    """The log of a short run of closed BERT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDZOO_DATA", str(caches))
        return logged(bert(), tmp_path_factory.mktemp("bert"), division="closed")


@pytest.mark.integration
def test_a_short_bert_run_is_aborted_and_passes(bert_log):
    """Closed BERT by LAMB: all that the rules want is there, from the run; what is left is that the target was not met."""
    events = read(bert_log)
    assert bert_log.name == "result_0.txt" and status(events) == "aborted"
    assert complaints(bert_log) == []
    assert value(events, "opt_lamb_beta_2") == 0.999 and value(events, "opt_learning_rate_training_steps") == 40
    assert value(events, "global_batch_size") == 16 and value(events, "eval_samples") == 20
    assert value(events, "submission_platform") == "1x cpu"
    scores = [e for e in events if e.key == "eval_accuracy"]
    assert [e.metadata["samples_count"] for e in scores] == [32, 64]
    stats = [e for e in events if e.key == "tracked_stats"]
    assert all(e.value["throughput"] == pytest.approx(16 / e.value["step_time"]) for e in stats) and len(stats) == 2
    assert [e.time for e in events] == sorted(e.time for e in events)
    # The same log with the score of a good model is a success by the rules.
    assert verdict(rewritten(bert_log, f'"value": {scores[-1].value}', '"value": 0.75')) == []


@pytest.mark.integration
def test_the_verdict_is_that_of_mlperfs_command(bert_log):
    """MLPerf's checker, called as its users do, says of a log that misses the target what `verdict` returns, and nothing else."""
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "4.1.0", "--log_output", "/dev/null"]
    official = subprocess.run([*command, "--werror", str(bert_log)], capture_output=True, text=True, check=False)
    (missed,) = verdict(bert_log)
    assert official.returncode == 1 and official.stderr.count("Failed") == 1
    assert missed in official.stderr and missed.startswith("Failed checks for eval_accuracy")


@pytest.mark.integration
def test_open_bert_passes_as_it_is(bert_log):
    """The open rules of BERT have no target: the checker passes an aborted run."""
    assert verdict(rewritten(bert_log, '"value": "closed"', '"value": "open"')) == []


def test_open_bert_takes_any_optimizer():
    """AdamW, which the closed rules refuse, has its own settings in the log."""
    settings = mlperf_rules.settings(registry.load("bert.quickstart"), mlperf_benchmarks.BERT)
    assert settings["opt_name"] == "adamw" and settings["opt_adamw_beta_1"] == 0.9


@pytest.mark.integration
@pytest.mark.slow
def test_a_short_gpt3_run_is_aborted_and_passes(tmp_path):
    """MLPerf's GPT-3 from a checkpoint whose step it names; without one it is refused."""
    with pytest.raises(ConfigError, match=r"'init_checkpoint_step'"):
        logged(gpt3(), tmp_path)
    assert not list(tmp_path.glob("logs/result_*"))
    assert run(gpt3(), tmp_path / "start") == trainer.DONE
    path = logged(gpt3(str(tmp_path / "start")), tmp_path, division="closed")
    events = read(path)
    assert value(events, "init_checkpoint_step") == 1 and value(events, "opt_name") == "adam"
    assert status(events) == "aborted" and complaints(path) == []
    (score,) = [e for e in events if e.key == "eval_accuracy"]
    (missed,) = verdict(path)
    assert score.value > 2.69 and missed.startswith("Failed checks for eval_accuracy")
    assert verdict(rewritten(path, str(score.value), "2.68")) == []


def test_a_log_must_hold_what_the_rules_fix(tmp_path):
    """Another decay than GPT-3's 0.95, or Adam for BERT's LAMB: refused before training, with key, value and rule."""
    e = gpt3()
    e = dataclasses.replace(e, optimizer=dataclasses.replace(e.optimizer, b2=0.999))
    with pytest.raises(ConfigError, match=r"opt_adam_beta_2 is 0.999, must be: v\['value'\] == 0.95"):
        logged(e, tmp_path)
    e = dataclasses.replace(bert(), optimizer=registry.load("bert.quickstart").optimizer)
    with pytest.raises(ConfigError, match=r"opt_lamb_epsilon.*; choose --mlperf-division open"):
        logged(e, tmp_path, division="closed")
    assert not list(tmp_path.glob("logs/result_*"))


@pytest.mark.integration
@pytest.mark.slow
def test_a_translation_ends_when_it_meets_its_target(tmp_path):
    """Two attempts, two files: one is over before it reaches its BLEU, the other ends at the evaluation that does."""
    aborted = logged(m4(), tmp_path, target=20.0)
    assert status(read(aborted)) == "aborted" and value(read(aborted), "eval_accuracy") < 20
    e = m4()
    met = logged(dataclasses.replace(e, train=dataclasses.replace(e.train, steps=60, eval_every=10)), tmp_path, target=20.0)
    events = read(met)
    scores = [event for event in events if event.key == "eval_accuracy"]
    assert [aborted.name, met.name] == ["result_0.txt", "result_1.txt"]
    assert status(events) == "success" and [s.value >= 20 for s in scores].index(True) == len(scores) - 1
    assert events[-1].metadata["samples_count"] == scores[-1].metadata["samples_count"] < 60 * 16
    assert value(events, "moe_num_experts") == 8 and value(events, "moe_gating") == "top2"
    assert complaints(aborted) == complaints(met) == []
    assert verdict(aborted) == []
    (claimed,) = verdict(rewritten(aborted, '"status": "aborted"', '"status": "success"'))
    assert "run_stop" in claimed
    (lacking,) = verdict(rewritten(met, '"key": "moe_gating"', '"key": "gating"'))
    assert "'moe_gating'" in lacking


def test_a_run_that_goes_on_is_no_attempt(tmp_path):
    """A folder with checkpoints is refused: time to target counts from step 0."""
    (tmp_path / "run_0" / "checkpoints" / "100").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"starts at step 0.*choose another --workdir"):
        logged(bert(), tmp_path)
    assert not list(tmp_path.glob("logs/result_*"))


@pytest.mark.integration
def test_an_error_aborts_an_attempt_that_started(tmp_path, monkeypatch):
    """An exception in the loop leaves a log that says so; one before the start leaves none."""
    calls = []

    def fail(self, loss, seconds, when=None):
        if self.path.parent == tmp_path / "logs":  # not in the rehearsal
            calls.append(loss)
            raise RuntimeError("the machine broke")

    monkeypatch.setattr(mlperf_log.Attempt, "stats", fail)
    with pytest.raises(RuntimeError, match="broke"):
        logged(bert(), tmp_path)
    (path,) = tmp_path.glob("logs/result_*")
    assert calls and status(read(path)) == "aborted"

    def refuse(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(step, "compile_step", refuse)
    with pytest.raises(RuntimeError, match="no compiler"):
        run(bert(), tmp_path / "other", Request(folder=tmp_path / "logs"))
    assert list(tmp_path.glob("logs/result_*")) == [path]


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    """Process 1 counts and judges as process 0 does, and leaves no file."""
    monkeypatch.setattr(jax, "process_index", lambda *_: 1)
    e = m4()
    with mlperf_log.attempt(Request(folder=tmp_path / "logs", target=5.0), e, None, tmp_path / "run") as attempt:
        attempt.start()
        attempt.step = 1
        attempt.eval_start()
        attempt.eval_stop({"eval/bleu": 6.0}, more=True)
    assert attempt.target_met and not (tmp_path / "logs").exists()


@pytest.mark.integration
def test_throughput_alone(tmp_path):
    """Timed steps, and a run on random tokens, make logs that our rules pass and MLPerf's do not; neither claims success."""
    e, now = registry.tiny(registry.load("gpt.quickstart")), time.time()
    windows = [Window(now, now + 2, 1, 4.5), Window(now + 5, now + 6, 1, 4.25)]
    timed = mlperf_log.throughput(e, Request(folder=tmp_path / "logs"), windows)
    trained = logged(e, tmp_path)
    for path in (timed, trained):
        events = read(path)
        assert complaints(path) == [] and status(events) == "aborted"
        assert value(events, "submission_benchmark") == "throughput"
    first = value(read(timed), "tracked_stats")
    assert first["throughput"] == pytest.approx(16 / 2, rel=1e-3) and first["reduced_train_loss"] == 4.5
    attempts = mlperf_report.attempts(tmp_path / "logs")
    a, b = (attempt.throughput for attempt in attempts)
    assert a == pytest.approx(32 / 3, rel=1e-3) and a and b  # what lies between the windows is not timed
    assert f"{(a + b) / 2:.1f} rows/s, median of 2 attempts" in mlperf_report.table(attempts)
    assert verdict(rewritten(timed, '"value": "throughput"', '"value": "bert"'))
    with pytest.raises(ConfigError, match="no window"):
        mlperf_log.throughput(e, Request(folder=tmp_path / "logs"), [])


@pytest.mark.parametrize(
    ("name", "changes", "target", "said"),
    [
        ("gshard_m4.quickstart", {}, None, "needs the BLEU to reach"),
        ("gshard_m4.quickstart", {}, 0.0, "above 0 and at most 100"),
        ("bert.large_lamb", {}, 0.5, "has MLPerf's target 0.72; leave"),
        ("bert.minilm_spam", {}, 0.9, "throughput has no target"),
        ("gpt.quickstart", {"cache": ""}, 3.0, "throughput has no target"),
    ],
)
def test_a_benchmark_has_its_target(name, changes, target, said):
    e = registry.load(name)
    with pytest.raises(ConfigError, match=said):
        mlperf_rules.benchmark(dataclasses.replace(e, data=dataclasses.replace(e.data, **changes)), target)


@pytest.mark.parametrize(
    ("name", "target", "benchmark"),
    [
        ("bert.large_lamb", None, mlperf_benchmarks.BERT),
        ("gpt.quickstart", None, mlperf_benchmarks.GPT3),
        ("gshard_m4.quickstart", 4.0, Benchmark("gshard_m4", "eval/bleu", 4.0, highest=100.0)),
        ("bert.minilm_spam", None, mlperf_benchmarks.THROUGHPUT),
    ],
)
def test_the_kind_of_data_names_the_benchmark(name, target, benchmark):
    """Masked words are BERT's, running text is GPT-3's, translations have our own; whatever has none is measured by its speed,
    whichever family it is."""
    e = registry.load(name)
    assert mlperf_rules.benchmark(e, target) == benchmark
    synthetic = dataclasses.replace(e, data=dataclasses.replace(e.data, cache=""))
    assert mlperf_rules.benchmark(synthetic) == mlperf_benchmarks.THROUGHPUT


def test_a_family_without_tokens_claims_no_benchmark_of_them():
    """Data of another kind on a model of another family is no GPT-3, and has no length of rows in its log."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Grids(TextData):
        benchmark: ClassVar[str] = "throughput"

        def features(self) -> dict[str, Feature]:
            return {"grid": Feature((8, 8), (None, None))}

    e = registry.load("gpt.quickstart")
    e = dataclasses.replace(e, data=Grids(cache="grids", batch_size=8, length=8))
    assert mlperf_rules.benchmark(e) == mlperf_benchmarks.THROUGHPUT
    assert "max_sequence_length" not in mlperf_rules.settings(e, mlperf_benchmarks.THROUGHPUT)


@pytest.mark.parametrize("name", registry.names())
def test_every_experiment_has_settings(name):
    """Each schedule, optimizer and layout has words in MLPerf's terms."""
    settings = mlperf_rules.settings(registry.load(name), mlperf_benchmarks.THROUGHPUT)
    assert settings["opt_base_learning_rate"] > 0 and settings["opt_name"] in ("adafactor", "adagrad", "adamw", "lamb", "sgd")
    assert isinstance(settings["micro_batch_size"], int) and settings["micro_batch_size"] >= 1


def test_parallelism_is_the_layouts():
    """Ways of cutting hidden dimensions, experts and stages; microbatches of a pipeline accumulate gradients. Our Megatron 1008B
    has 4 pipelines for its 2048 rows, which go through in 512 microbatches of one row."""
    e = registry.load("gpt.megatron_1008b_pipelined")
    settings = mlperf_rules.settings(e, mlperf_benchmarks.THROUGHPUT)
    ways = [settings[f"{k}_parallelism"] for k in ("pipeline", "tensor", "expert")]
    assert ways == [64, 8, 1] and settings["gradient_accumulation_steps"] == 512
    assert settings["global_batch_size"] == 2048 and settings["micro_batch_size"] == 1
    e = registry.load("gshard_m4.quickstart")
    assert mlperf_rules.settings(e, mlperf_benchmarks.THROUGHPUT)["expert_parallelism"] == 8


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path, capsys):
    """A full disk is the error of any log of a run, with the log's name; no traceback is printed beside a run that goes on."""
    path = mlperf_log.new_log(tmp_path)
    log = mlperf_log.Attempt(mlperf_benchmarks.THROUGHPUT, 8, path)
    log.describe(0.0, {"submission_org": "mine"})
    fill_disk_of(path)
    with pytest.raises(runlog.StoreError, match=r"result_0\.txt cannot be written: No space left on device"):
        log.describe(0.0, {"submission_org": "mine"})
    assert capsys.readouterr() == ("", "")
