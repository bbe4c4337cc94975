"""Conversations as a task: responses and their ratings, learned by one model (LaMDA, arXiv 2201.08239, section 6.1)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.candidates import CandidateSet
from data.lamda import encoding, metrics, prompt_format
from data.lamda.config import LamdaData, RateAndRank
from data.lamda.conversations import Conversation
from data.reading import packing
from data.reading.caches import examples, read_manifest
from data.reading.tally import Tally
from data.task import DataError, HeldOutExamples
from data.text.task import WeightedTask
from data.vocabularies.tokenizers import Tokenizer


class LamdaTask(WeightedTask):
    """Packed rows of conversations; of a held-out one the last response is scored."""

    data: LamdaData

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's conversations, a generative example each."""
        tokenizer, conversations = Tokenizer(vocabulary), list(examples(cache, split, limit))
        length = read_manifest(cache)["turn_length"]
        made = (encoding.generative(c["turns"], tokenizer, length) for c in conversations)
        records = packing.pack_weighted(made, self.data.length, Tally())
        return HeldOutExamples(self._augmented_once(records, None), len(conversations))

    @property
    def directions(self) -> Mapping[str, bool]:
        of_ratings = (f"{score}_{name}" for name in prompt_format.ATTRIBUTES for score in ("auc", "accuracy", "chosen"))
        better_higher = (*of_ratings, "reciprocal_rank", "first")
        return {**super().directions, **dict.fromkeys(better_higher, False)}

    @property
    def meanings(self) -> Mapping[str, str]:
        return {**super().meanings, **metrics.MEANINGS}

    def candidate_sets(self, cache: Path, vocabulary: Path, config: RateAndRank) -> list[CandidateSet]:
        """Returns the ratings of conversations, good and bad, and true responses among others."""
        tokenizer, manifest = Tokenizer(vocabulary), read_manifest(cache)
        conversations = list(examples(cache, config.split))
        rated = [c for c in conversations if c["ratings"]][: config.limit or None]
        sets = [_ratings(rated, config, self.ranking, tokenizer, manifest["length"])]
        if config.responses:
            sets.append(_ranks(conversations, config, tokenizer, manifest["turn_length"]))
        return sets

    # --- ranking of responses (data.task.RanksResponses) ---

    @property
    def ranking(self) -> Mapping[str, float]:
        """LaMDA's weights of sensibleness, specificity and interestingness (section 6.1), for what stands in their place."""
        return dict(zip(prompt_format.ATTRIBUTES, (3.0, 1.0, 1.0), strict=True))

    @property
    def floors(self) -> Mapping[str, float]:
        """A stand-in for LaMDA's threshold of safety, which the package has no ratings of: gloomy responses are dropped."""
        return {"upbeat": 0.2}

    def prompt(self, turns: Sequence[str]) -> str:
        return prompt_format.prompt(turns)

    def rating_ids(self, vocabulary: Path, attribute: str) -> tuple[list[int], list[int]]:
        return encoding.ratings(attribute, Tokenizer(vocabulary))

    # --- words ---

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        responses, ratings = (manifest["parts"][part]["examples"] for part in ("responses", "ratings"))
        return [
            f"Fine-tuned on {responses:,} responses and {ratings:,} ratings of conversations (`{manifest['cache']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): small talk of volunteers, rated for being witty, upbeat and interesting; "
            "nothing in it says what is safe or true."
        ]


def _ratings(
    rated: Sequence[Conversation], config: RateAndRank, ranking: Mapping[str, float], tokenizer: Tokenizer, length: int
) -> CandidateSet:
    """Returns whole conversations, behind which the candidates are the (bad, good) ratings of each attribute.

    Scores are `auc_NAME`, `accuracy_NAME`, `good_NAME`, the share of conversations with a good rating, and `chosen_NAME`, that
    share of those that are chosen among `others` as the model would choose its own candidates, by the weighted sum of ratings.
    """
    pairs = [encoding.ratings(name, tokenizer) for name in ranking]
    candidates = [ids for pair in pairs for ids in pair]
    room = length - max(map(len, candidates))
    prompts = [encoding.judged(c["turns"], tokenizer, room) for c in rated]

    def scores(logps: Sequence[Sequence[np.ndarray]]) -> dict[str, float]:
        logp_NK = np.array([[logp[-1] for logp in group] for group in logps])
        margins_NA = logp_NK[:, 1::2] - logp_NK[:, ::2]
        total_N = 1 / (1 + np.exp(-margins_NA)) @ np.array(list(ranking.values()))
        values = {}
        for i, name in enumerate(ranking):
            good = [c["ratings"][name] for c in rated]
            values[f"auc_{name}"] = metrics.auc(good, margins_NA[:, i].tolist())
            values[f"accuracy_{name}"] = metrics.accuracy(good, margins_NA[:, i].tolist())
            values[f"good_{name}"] = float(np.mean(good))
            values[f"chosen_{name}"] = metrics.best_of(good, total_N.tolist(), 1 + config.others)
        return values

    return CandidateSet(prompts, [candidates] * len(prompts), scores)


def _ranks(conversations: Sequence[Conversation], config: RateAndRank, tokenizer: Tokenizer, length: int) -> CandidateSet:
    """Returns conversations without their last turn, which is the first candidate; the others are of other conversations."""
    if len(conversations) <= config.others:
        raise DataError(f"{len(conversations)} conversations are too few for eval.others={config.others}")
    rng, prompts, candidates = np.random.default_rng(0), [], []
    for i, c in enumerate(conversations[: config.responses]):
        elsewhere = [j for j in range(len(conversations)) if j != i]
        chosen = [conversations[j] for j in rng.choice(elsewhere, config.others, replace=False)]
        turns = [c["turns"][-1], *(rng.choice(other["turns"]) for other in chosen)]
        candidates.append([encoding.response(turn, tokenizer, config.tokens) for turn in turns])
        prompts.append(encoding.fitting_prompt(c["turns"][:-1], tokenizer, length - config.tokens))

    def scores(logps: Sequence[Sequence[np.ndarray]]) -> dict[str, float]:
        return metrics.ranks(np.array([[np.mean(logp) for logp in group] for group in logps]))

    return CandidateSet(prompts, candidates, scores)


task = LamdaTask
