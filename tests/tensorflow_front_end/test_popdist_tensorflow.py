"""Models of Keras that several processes train, beside one process with as many replicas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import process_keras, processes  # noqa: E402

from poptorch_emu import Error  # noqa: E402
from poptorch_emu.companions.popdist import tensorflow as popdist_tensorflow  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("popdist.tensorflow", fidelity="exact")

Strategy = ipu.distributed.popdist_strategy.PopDistStrategy


def test_two_processes_when_they_fit_then_learn_what_two_replicas_learn(tmp_path: Path) -> None:
    started = processes.start(process_keras.__file__, [str(tmp_path)], 2, 1)
    for ended in processes.finish(started, seconds=400):
        assert ended.status == 0, ended.text
    models.use_ipus(2)
    results = processes.results_of(tmp_path, 2)
    for method in ("sum", "mean"):
        wanted = process_keras.trained(*process_keras.data(), method)
        for one, other, mine in zip(results[0][method], results[1][method], wanted, strict=True):
            assert torch.equal(one, other)
            np.testing.assert_allclose(one.numpy(), mine, atol=1e-6)


def test_one_process_then_the_strategy_is_an_ordinary_one() -> None:
    config = ipu.config.IPUConfig()
    assert popdist_tensorflow.set_ipu_config(config, ipus_per_replica=2) is config
    assert config.auto_select_ipus == 2
    strategy = Strategy(add_ipu_cross_replica_reductions=True)
    assert strategy.num_replicas_in_sync == 1
    models.use_ipus(1)
    assert float(strategy.run(lambda x: x * 2, args=[np.float32(3)])) == 6
    with pytest.raises(ValueError, match="ipus_per_replica must be 1 or more, not 0"):
        popdist_tensorflow.set_ipu_config(config, ipus_per_replica=0)


def test_processes_when_not_those_of_the_launcher_then_are_refused() -> None:
    config = ipu.config.IPUConfig()
    config.experimental.multi_replica_distribution.process_count = 2
    with pytest.raises(ValueError, match="process 0 of 2, but it is 0 of 1.*set_ipu_config"):
        config.configure_ipu_system()


def test_loop_when_there_are_several_processes_then_is_refused(monkeypatch) -> None:
    for name, value in processes.popdist_variables(0, 2, 1, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="PopDistStrategy of ipu.distributed"):
        ipu.ipu_strategy.IPUStrategy()
    monkeypatch.setattr("poptorch_emu.companions.popdist.init", lambda: None)
    with pytest.raises(Error, match="several processes|Several processes"):
        Strategy().run(lambda: None)
