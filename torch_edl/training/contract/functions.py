"""The functions of a model file that are called in the same way for all frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from torch_edl.data.sources import Source
from torch_edl.errors import ContractError, UsageError, describe_error
from torch_edl.interfaces import Signature
from torch_edl.interfaces.preprocessing import Fittable
from torch_edl.training.contract.advice import advice
from torch_edl.training.contract.argument_order import LabelsFirst, labels_first, refuse_class

Metrics = Mapping[str, Any]
EVENTS = frozenset(
    {"on_train_begin", "on_batch_end", "on_task_end", "on_epoch_end", "on_train_end"}
)
"""Names of the methods of callbacks that a worker calls."""


@dataclass(frozen=True)
class UserMetric:
    """A metric of a model file."""

    made: Any
    """A function of labels and predictions, or a metric object with a state."""
    output: str = ""
    """Name of the model output that the metric receives; empty: the whole output."""


@dataclass(frozen=True, kw_only=True)
class UserFunctions:
    """The functions of a model file that have the same meaning in all frameworks.

    Each attribute has the documented name of its function; None: the file does not define it.
    """

    path: str
    """Path of the model file."""
    model: Callable[[], Any]
    loss: LabelsFirst
    feed: Callable[[Any, str, Any], Any]
    eval_metrics_fn: Callable[[], Metrics] | None = None
    callbacks: Callable[[], Sequence[Any]] | None = None
    data_source: Callable[..., Any] | None = None
    prediction_outputs_processor: Any | None = None
    """Function of the outputs of a minibatch, or object with ``process(outputs, worker_id)``."""
    preprocessing: Fittable | None = None
    """Preprocessing of the file, which may have to be fitted before training; None: none."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Names of the functions in the file, by documented name; empty: not defined."""

    signatures: ClassVar[Mapping[str, Signature]]
    """Signatures of the functions in the framework of the file, by documented name."""

    def named(self, name: str) -> str:
        """Return the name of a function in the file, or its documented name."""
        return self.names.get(name) or name

    def check_metric(self, what: str, metric: Any) -> None:
        """Reject an object that cannot be a metric.

        Args:
            what: name of the metric in messages.

        Raises:
            UsageError: the metric is a class.
            ContractError: the metric is not callable and has no ``update``.
        """
        refuse_class(f"{self.path}: {what}", metric)
        if not (callable(metric) or hasattr(metric, "update")):
            raise self._wrong(what, metric, "a function or a metric")

    def make_metrics(self) -> dict[str, UserMetric]:
        """Call ``eval_metrics_fn`` and return its metrics by name.

        The function may return a nested dict of metrics for one output of the model. These metrics
        are named OUTPUT_METRIC.

        Raises:
            ContractError: the function raised, did not return metrics by name, or a name is
                ``loss`` or occurs twice.
        """
        if self.eval_metrics_fn is None:
            return {}
        metrics: dict[str, UserMetric] = {}
        given = self._call("eval_metrics_fn()", self.eval_metrics_fn)
        for name, made in self._named("eval_metrics_fn", given):
            found = [(name, UserMetric(made))]
            if isinstance(made, Mapping):
                of_output = self._named(f"eval_metrics_fn()[{name!r}]", made)
                found = [(f"{name}_{each}", UserMetric(metric, name)) for each, metric in of_output]
            for each, metric in found:
                self.check_metric(f"eval_metrics_fn()[{each!r}]", metric.made)
                if each == "loss":
                    raise ContractError(
                        f"{self.path}: eval_metrics_fn() has a metric 'loss', and the loss is "
                        "always evaluated; choose another name"
                    )
                if each in metrics:
                    raise ContractError(
                        f"{self.path}: eval_metrics_fn() has two metrics {each!r}; rename one"
                    )
                metrics[each] = metric
        return metrics

    def _named(self, what: str, made: Any) -> list[tuple[str, Any]]:
        if not isinstance(made, Mapping) or not all(isinstance(k, str) for k in made):
            raise self._wrong(what, made, "a dict of name to metric")
        return list(made.items())

    def make_sources(self, paths: Sequence[str]) -> dict[str, Source]:
        """Call ``data_source`` and return its sources by name; empty without ``data_source``.

        Raises:
            ContractError: the function raised, did not return sources, or two sources have the same
                name.
        """
        if self.data_source is None:
            return {}
        made = self._call("data_source()", partial(self.data_source, paths))
        sources = list(made) if isinstance(made, list | tuple) else [made]
        by_name: dict[str, Source] = {}
        for source in sources:
            if not isinstance(source, Source):
                raise self._wrong(
                    "data_source", source,
                    "an object (or a list) with name, count, damaged, metadata and "
                    "read(start, end)",
                )  # fmt: skip
            if source.name in by_name:
                raise ContractError(
                    f"{self.path}: data_source returned two sources named {source.name!r}; give "
                    "each a name of its own"
                )
            by_name[source.name] = source
        return by_name

    def make_callbacks(self) -> list[Any]:
        """Call ``callbacks`` and return its objects; empty without ``callbacks``.

        Raises:
            ContractError: the function raised, did not return a list, or an object has an ``on_``
                method that is never called.
        """
        if self.callbacks is None:
            return []
        made = self._call("callbacks()", self.callbacks)
        if not isinstance(made, Sequence):
            raise self._wrong("callbacks", made, "a list of objects")
        try:
            return check_callbacks(made, EVENTS, "a model file")
        except UsageError as error:
            raise ContractError(f"{self.path}: {error}") from None

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise ContractError(
                f"{self.path}: {name} raised {describe_error(error)}{advice(error)}"
            ) from error

    def _wrong(self, name: str, got: Any, expected: str) -> ContractError:
        example = self.signatures[name.partition("(")[0]].example
        return ContractError(
            f"{self.path}: {self.named(name)} returned {type(got).__name__}, expected {expected}; "
            f"for example:\n    {example}"
        )


def check_callbacks(callbacks: Sequence[Any], events: Set[str], whose: str) -> list[Any]:
    """Return callbacks as a list.

    Args:
        events: names of the methods that are called.
        whose: the owner of the callbacks, for messages.

    Raises:
        UsageError: an object has an ``on_`` method that is never called.
    """
    for callback in callbacks:
        unknown = sorted(_own_events(callback) - events)
        if unknown:
            raise UsageError(
                f"{type(callback).__name__}.{unknown[0]} would never be called; "
                f"callbacks of {whose} have {', '.join(sorted(events))}"
            )
    return list(callbacks)


def _own_events(callback: Any) -> set[str]:
    """Return the names of a callback's ``on_`` methods, except those that Keras defines."""
    classes = (c for c in type(callback).__mro__ if not c.__module__.startswith("keras."))
    return {name for each in classes for name in vars(each) if name.startswith("on_")}


def argument_orders(functions: UserFunctions) -> list[tuple[str, str]]:
    """Return the name and a description of the argument order for the loss and for each metric
    that is a function."""
    found = [("loss", functions.loss)]
    found += [
        (f"metric {name}", labels_first(metric.made))
        for name, metric in functions.make_metrics().items()
        if not hasattr(metric.made, "update")
    ]
    return [(what, f"{f.name}{f.order}: {f.reason}") for what, f in found]
