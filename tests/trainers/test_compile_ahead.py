"""A run finds the programs that were compiled ahead of it."""

import dataclasses

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from models.sharding.layouts import data_parallel
from tests.helpers.runs import run, with_train
from trainers import runlog, trainer


@pytest.mark.integration
def test_a_run_compiles_nothing_but_checksums_after_what_was_compiled_ahead(small, tmp_path):
    """The start's and the step's programs are found, and no array of which all devices have copies is cut to be written."""
    programs = tmp_path / "programs"
    e = dataclasses.replace(with_train(small, steps=2), layout=data_parallel(8, 1))
    settings = {"jax_compilation_cache_dir": str(programs), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        jax.clear_caches()
        trainer.compile_ahead(e)
        ahead = {file.name for file in programs.iterdir()}
        jax.clear_caches()
        assert run(e, tmp_path / "run") == runlog.DONE
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    after = {file.name for file in programs.iterdir()} - ahead
    assert len(ahead) == 2 and {name.rsplit("-", 2)[0] for name in after} == {"jit_checksums"}
