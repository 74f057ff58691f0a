"""The part of a training script's job that is about parameter servers. Pure.

The strategy is decided by the first worker that reports its model, as for a model file. The data
are the script's own: the first worker that begins its loader tells what there is to go through,
and the master leases tasks of positions in it.
"""

from __future__ import annotations

from typing import Any

from master.state.data_identity import check_same, with_data
from master.state.job import Job
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


class ServedJob(Job):
    """A job whose tasks are cut from the loader of a script."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what :class:`Job` takes."""
        super().__init__(*args, **kwargs)
        self.settled = False
        """All tasks are done, and the last checkpoint is written."""
        self._data: pb.ScriptData | None = None
        self._scripts_over = False

    @property
    def _served(self) -> bool:
        return self.fleet.strategy == "ps"

    def report_data(self, request: pb.ReportDataRequest, now: float) -> pb.ReportDataResponse:
        """A worker reports what its loader goes through; the first report makes the tasks.

        Raises:
            UsageError: another worker reported other data.
        """
        if self._model is None:
            raise UsageError("the model is to be reported before its data")
        if self.outcome is None:
            self._take_data(request.data, now)
        return pb.ReportDataResponse()

    def _take_data(self, told: pb.ScriptData, now: float) -> None:
        if self._data is not None:
            check_same(self._data, told)
            return
        config = with_data(self.config, told)
        self._data = told
        try:
            text = self.work.begin_script(config, told)
        except UsageError as error:
            self.fail(str(error), now, usage=True)
            return
        self.config = config
        self._begun(text, now)

    def _begin(self, now: float) -> None:
        """The data are reported later, see :meth:`report_data`."""

    def _is_ready(self) -> bool:
        return True

    def _decide(self, strategy: str) -> None:
        newest = self.checkpoints.newest
        if newest is not None and newest.manifest.strategy != strategy:
            then = newest.manifest.strategy
            raise UsageError(
                f"--resume {newest.path}: a checkpoint of the strategy {then}; go on with "
                f"--strategy {then}, or begin with its values: --load"
            )
        super()._decide(strategy)

    def _trained(self) -> bool:
        # A script may leave its loop early: what it has trained by then is all there will be.
        return super()._trained() or (self.work.ready and self._scripts_over)

    def _work_over(self, now: float) -> None:
        if self.settled:
            return
        self.settled = True
        main = self.work.main
        if main is not None and not main.queue.complete:
            left = main.queue.space.total - main.queue.done
            tasks = f"{left:,} task{'s' * (left != 1)}"
            self.tell("warning", f"the script left its loop with {tasks} to do", now)

    def _renew(self, text: str, now: float) -> None:
        super()._renew(text, now)
        main = self.work.main
        if main is None:
            return
        self.checkpoints.resume_at_end(main.queue.space.total_steps)
        if self.settled and not main.queue.complete:
            self.fail(
                f"{text}, after the training was over and before the scripts were: the model is "
                "lost; name a --checkpoint-dir to keep it",
                now,
            )

    def lose_servers(self, now: float) -> None:
        """A master that goes on finds that its servers ended with the one before it."""
        keep = self.config.checkpoint.dir
        again = f"go on from the newest checkpoint in {keep} with --resume"
        self.fail(
            "the master was killed, and the parameter servers with it: "
            + (again if keep else "the model is lost; --checkpoint-dir keeps it"),
            now,
        )
