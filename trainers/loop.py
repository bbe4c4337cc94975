"""The training loop: batches, steps, logs, evaluations, saves and rewinds, until the run ends.

All processes of a run go through it alike. What only watches is an observer (trainers/monitoring/observer.py).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import jax

from data.reading.batches import Batches
from models.protocol import Batch
from trainers.checkpoints.manager import Checkpoints
from trainers.distillation import Teach
from trainers.evaluation.evaluator import Evaluator
from trainers.monitoring.corruption import Checker
from trainers.monitoring.metrics import Values, to_host
from trainers.monitoring.observer import EVALUATING, READING, SAVING, STEPPING, Logged, Observer
from trainers.monitoring.spikes import AT_ONE_PLACE, Spikes
from trainers.plan import Plan
from trainers.runlog import CORRUPTED, DIVERGED, DONE, PREEMPTED, Record
from trainers.state import State
from trainers.step import Metrics


@dataclasses.dataclass(kw_only=True)
class Loop:
    """The loop of one start of a run.

    Attributes:
      state: the state after the newest step.
      teach: adds a teacher's soft targets to a batch.
      fingerprint: the data's, which checkpoints hold.
      compiled: the step, which consumes its state.
      checker: computes a step with checks for silent corruption.
      evaluator: None where there is no held-out data.
      stop: returns whether a signal asks to stop; all processes get the same answer.
      print_line: prints a line.
    """

    plan: Plan
    state: State
    fingerprint: str
    batches: Batches
    teach: Teach
    compiled: Callable[[State, Batch], tuple[State, Metrics]]
    checker: Checker
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    spikes: Spikes
    record: Record
    stop: Callable[[], bool]
    print_line: Callable[[str], None]
    observers: Sequence[Observer]

    def __post_init__(self) -> None:
        self.train = self.plan.experiment.train
        self.units = self.plan.units()
        self.step = int(self.state.step)
        self.skipped = self.skipped_before = int(self.state.skipped)
        self.saved = self.step, self.skipped  # steps, and those of them that were skipped, up to the last save
        self.last = self.stopping = False
        self.pending: list[tuple[int, Metrics]] = []  # steps whose metrics have not been fetched
        self.timed = self.step, time.perf_counter()  # where the time of the next log begins

    def run(self) -> int:
        """Trains until the last step, the target, a signal or a fault, and returns the exit code."""
        for observer in self.observers:
            observer.started()
        while True:
            if corruption := self.advance(self.take_batch()):
                self.say(f"step {self.step} is corrupt: {corruption}; nothing is saved")
                return self.record.end(CORRUPTED, self.step, error=corruption)
            self.last = self.step == self.train.steps
            self.stopping = self.stopping or self.stop()

            logging = self.last or self.step % self.train.log_every == 0
            if logging or self.stopping:
                steps = self.fetch(logging)
                if logging and (sound := self.step_before_spike(steps)) is not None:
                    spike = self.step
                    if not self.rewind(sound):
                        return self.record.end(DIVERGED, spike)
                    continue
                if logging:
                    self.log(steps)
                if (skipped := self.skipped - self.skipped_before) > (most := self.train.faults.max_nonfinite):
                    self.say(f"{skipped} steps were not finite, more than train.faults.max_nonfinite={most}")
                    return self.record.end(DIVERGED, self.step)

            scores = None
            due = self.is_due(self.train.eval_every) and self.step >= self.train.eval_from
            if self.evaluator and (self.last or due):  # also when stopping: no step is repeated
                scores = self.evaluate(self.evaluator)
            self.keep(scores)

            if self.last:
                self.interrupt()
                return self.record.end(DONE, self.step)
            if self.stopping:
                self.say(f"stopping at step {self.step} by a signal; run the same command to go on")
                return self.record.end(PREEMPTED, self.step)

    def is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def keep(self, scores: Mapping[str, float] | None) -> None:
        """Saves the present state where it is due: in the store, on the hosts, or both."""
        saved = self.is_kept(scores) and self.save(scores)
        if self.is_kept_locally(saved):
            self.enter(SAVING)
            self.checkpoints.save_locally(self.plan, self.state, self.fingerprint, (scores or {}) if saved else None)

    def is_kept(self, scores: Mapping[str, float] | None) -> bool:
        """Returns whether the present state is saved: at the end, by the number of steps, or to keep the best by its scores."""
        to_compare = bool(scores) and bool(self.train.checkpoint.best)
        return self.last or self.stopping or to_compare or self.is_due(self.train.checkpoint.every)

    def is_kept_locally(self, saved: bool) -> bool:
        """Returns whether hosts keep the present state: by the number of steps, or until its checkpoint is written."""
        every = self.train.checkpoint.local.every
        return every > 0 and (saved or self.is_due(every)) and not (self.last or self.stopping)

    def enter(self, phase: str) -> None:
        for observer in self.observers:
            observer.entered(self.step, phase)

    def interrupt(self) -> None:
        for observer in self.observers:
            observer.interrupted()

    def say(self, text: str) -> None:
        self.interrupt()
        self.print_line(text)

    def take_batch(self) -> Batch:
        """Returns the batch of the next step."""
        self.enter(READING)
        return self.teach(self.batches(self.spikes.batch(self.step)))

    def advance(self, batch: Batch) -> str:
        """Takes a step; returns a line about what is corrupt, or ""."""
        self.enter(STEPPING)
        self.step += 1
        corruption = ""
        if self.is_due(self.train.faults.check_every):
            self.state, step_metrics, corruption = self.checker(self.state, batch)
        else:
            self.state, step_metrics = self.compiled(self.state, batch)
        if not corruption:
            for observer in self.observers:
                observer.stepped(self.step, step_metrics)
            self.pending.append((self.step, step_metrics))
            if len(self.pending) > 1:  # at most two steps are in flight: the host must not run ahead without bound
                jax.block_until_ready(self.pending[-2][1]["loss"])
        return corruption

    def fetch(self, logging: bool) -> list[tuple[int, Values]]:
        """Returns the numbers of the steps since the last fetch, with their metrics; says which were skipped."""
        steps = [(number, to_host(values)) for number, values in self.pending]
        self.pending.clear()
        for observer in self.observers if logging else ():
            observer.fetched(self.step)
        for number, values in steps:
            if int(values["skipped"]) > self.skipped:
                self.skipped = int(values["skipped"])
                first, final = self.batches.ids(self.spikes.batch(number - 1))
                self.say(f"step {number}: loss or gradient is not finite; skipped (rows {first} to {final})")
        return steps

    def step_before_spike(self, steps: Sequence[tuple[int, Values]]) -> int | None:
        """Returns a step to whose checkpoint the run can go back, if the newest step's loss is a spike; None if not."""
        number, values = steps[-1]
        sound = self.spikes.before(values["loss"])
        if sound is None or self.checkpoints.newest(until=sound) is None:
            self.spikes.accept(number, values["loss"])
            return None
        self.say(f"step {number}: the loss {values['loss']:.4g} is a spike")
        return sound

    def rewind(self, sound: int) -> bool:
        """Goes back to the newest checkpoint up to a step; returns whether the run may go on from there."""
        spike = self.step
        state = self.checkpoints.restore(self.plan, self.fingerprint, until=sound)
        assert state is not None
        self.state, self.step = state, int(state.step)
        if not (rewind := self.spikes.rewind(spike, self.step, self.checkpoints, self.record.leader)):
            self.say(f"it has gone back to step {self.step} {AT_ONE_PLACE} times already")
            return False
        self.say(f"going back to step {self.step}, and from there past {rewind.skip} batches")
        self.skipped = int(state.skipped)
        self.saved = self.step, self.skipped
        for observer in self.observers:
            observer.rewound(self.step)
        self.timed = self.step, time.perf_counter()
        return True

    def log(self, steps: Sequence[tuple[int, Values]]) -> None:
        """Logs the steps since the last log that were fetched."""
        work = {unit: sum(values[unit] for _, values in steps) / len(steps) for unit in self.units}
        (then_step, then), now = self.timed, time.perf_counter()
        self.timed = self.step, now
        log = Logged(self.step, steps[-1][1], work, (now - then) / max(self.step - then_step, 1))
        for observer in self.observers:
            observer.logged(log)

    def evaluate(self, evaluator: Evaluator) -> Mapping[str, float]:
        """Returns the scores of the present state; the step is the last one if they meet the target."""
        self.enter(EVALUATING)
        scores = evaluator(self.plan.for_model(self.state.params))
        for observer in self.observers:
            observer.evaluated(self.step, scores, more=not (self.last or self.stopping))
        shown = {k.removeprefix("eval/"): v for k, v in scores.items() if k.count("/") == 1}
        self.say(f"step {self.step}: " + "  ".join(f"{k} {v:.4g}" for k, v in shown.items()))
        self.timed = self.step, time.perf_counter()
        if any(observer.target_met for observer in self.observers):
            self.say(f"step {self.step}: the target is met")
            self.last = True
        return scores

    def save(self, scores: Mapping[str, float] | None) -> bool:
        """Saves the state and returns True, unless every step since the last save was skipped: sound checkpoints stay."""
        self.enter(SAVING)
        skipped = int(self.state.skipped)
        if self.step - self.saved[0] == skipped - self.saved[1] and not self.last:
            self.say(f"step {self.step}: not saved, since every step after {self.saved[0]} was skipped")
            return False
        final = self.last or self.stopping
        self.checkpoints.save(self.plan, self.state, self.fingerprint, scores, final=final)
        self.saved = self.step, skipped
        return True
