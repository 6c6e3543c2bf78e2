"""What the parts of `PoplarExecutor` share: its attributes, and the questions all of them ask."""

from __future__ import annotations

import copy
import datetime
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.enums import ConnectionType
from poptorch_emu.errors import make_error
from poptorch_emu.executor.synced_tensors import Link
from poptorch_emu.optim.device_state import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.report.latency import Spans
from poptorch_emu.runtime.session import Session

State = TypeVar("State", bound="ExecutorState")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

NOT_COMPILED = "Model has not been compiled or has been destroyed."
_NO_PICKLE = (
    "A wrapped model holds a device: it cannot be pickled, nor copied once it is compiled. Use "
    "save() and poptorch.load() for all of it, state_dict() for its weights, or copy or pickle the "
    "module, which is its attribute 'model'."
)


class Turn:
    """What one thread holds and the others wait for; a deep copy of the owner has its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __deepcopy__(self, _: Any) -> Turn:
        return Turn()


# Of all who train tensors that others train, too: each call of one asks others for what they have
# learnt, and so on, so two turns could wait for one another.
COMMON_TURN = Turn()


def one_at_a_time(
    method: Callable[Concatenate[State, Arguments], Result],
) -> Callable[Concatenate[State, Arguments], Result]:
    """Makes a thread wait while another one is in such a method, as servers' threads must."""

    @functools.wraps(method)
    def locked(self: State, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._turn:
            return method(self, *args, **kwargs)

    return locked


class ExecutorState:
    """The attributes of an executor, set by its constructor.

    Attributes:
        _turn: held by the thread that uses the device.
        _link: leads the tensors that this executor trains back to it.
        _partners: executors that train some of the same tensors.
        _outdated: names of what a partner changed on the host since the last upload.
        _links, _links_are_of: those of the model's tensors, and after how many changes of any.
        _seen_versions: of an inference executor, by the trainers whose weights it last took.
        _end_profile: writes what ran since the device was attached; without a profile, nothing.
    """

    _options: Options
    _user_model: torch.nn.Module
    _training: bool
    _optimizer_link: OptimizerLink | None
    _executable: Executable | None
    _session: Session | None
    _compilation_time: datetime.timedelta | None
    _host_is_stale: bool = False
    _turn: Turn
    _link: Link
    _partners: weakref.WeakSet[Any]
    _outdated: set[str]
    _seen_versions: dict[Link, int]
    _links: list[Link]
    _links_are_of: int
    _rng_state: list[int] | None
    _anchored: dict[str, torch.Tensor]
    _spans: tuple[Spans, Spans]
    _end_profile: Callable[[], object]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled.

        Raises:
            TypeError: always; the message says what to do instead.
        """
        raise TypeError(_NO_PICKLE)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Returns a wrapper of a copy of the model, as long as nothing is compiled.

        Raises:
            TypeError: the model is compiled.
        """
        if self._executable is not None:
            raise TypeError(_NO_PICKLE)
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def _compiled(self) -> Executable:
        if self._executable is None:
            raise make_error(NOT_COMPILED)
        return self._executable

    @property
    def _optimizer(self) -> torch.optim.Optimizer | None:
        """The user's optimiser; programs ask for it under this name."""
        return self._optimizer_link.optimizer if self._optimizer_link is not None else None

    @property
    def _is_attached(self) -> bool:
        """Whether a device is attached; programs ask for it under this name."""
        return self._session is not None

    @property
    def _is_offline(self) -> bool:
        return bool(self._options.connection_type == ConnectionType.Never)
