"""The job of a training script: its workers are started by agents, or by torchrun. Pure.

A ring goes through the data by itself: there is no data here then and no task. On parameter
servers the first worker that begins its loader tells what there is to go through, and tasks are
leased as those of a model file. What is decided here are places (which worker is where), agents,
rounds of torchrun, and when it is all over.
"""

from __future__ import annotations

from typing import Any

from master.state.agents import Agent, Agents, require_same_experiment
from master.state.membership import Member
from master.state.outcome import Outcome
from master.state.passes import Passes
from master.state.ring import Ring
from master.state.rounds import Rounds
from master.state.served import ServedJob
from master.state.stopping import Stopping
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

# All ask twice a second or so; who did not for so long will not hear how the job ended.
_LINGER_S = 5.0
# So long nobody may be there: no agent, no worker, no node of torchrun.
_DESERTED_S = 60.0


class ScriptJob(ServedJob):
    """A job of kind ``script``; its fleet is external."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reason = "a training script"
        self._agents = Agents(timeout_s=self.config.cluster.heartbeat_timeout_s)
        self._rounds = Rounds()
        self._torchruns_error = ""
        """Why the first of its agents gave up; others may have come to the end."""
        self._places: dict[tuple[str, int], int] = {}
        self._next_id = 0
        self._scaled = False
        self._passes = Passes()
        self._steps = 0
        self._deserted_at: float | None = None
        self._abandoned_at: float | None = None
        self._waits_since: float | None = None
        self._returned = False

    @property
    def state(self) -> str:
        """As of any job; finishing also once no agent of torchrun may join any more."""
        going_on = self.outcome is None and self.stopping is None
        return "finishing" if going_on and self._rounds.closed else super().state

    @property
    def end_is_awaited(self) -> bool:
        """Our agents ask how it ended; torchrun's do not."""
        return len(self._agents) > 0

    def start(self, now: float) -> None:
        """Workers may come."""
        if self.fleet.strategy or self.outcome is not None:
            return  # it goes on, or cannot
        try:
            if self.config.train.strategy == "allreduce":
                self._decide("allreduce")
            super().start(now)
        except UsageError as error:
            self.fail(str(error), now, usage=True)

    # ---- workers ----

    def register(self, request: pb.RegisterRequest, now: float) -> int:
        """A worker that an agent started; returns its number.

        It replaces the one that was in its place before, unless it is the same process that asks
        again.

        Raises:
            UsageError: the job is over.
        """
        if self.outcome is not None or self.stopping is not None:
            raise UsageError(f"job {self.config.name} is over: no worker is wanted any more")
        place = (request.node or request.host, request.local_rank)
        before = self._places.get(place)
        if before is not None:
            member = self.members.get(before)
            if member is not None and member.pid == request.pid:
                return before
            self._gone(before, "left" if member is None else "another took its place", now)
        worker, self._next_id = self._next_id, self._next_id + 1
        self._places[place] = worker
        agent = self._agents.get(request.node)
        log = agent.logs.get(request.pid, "") if agent is not None else ""
        self.fleet.adopt(worker, request.pid, log)
        return worker

    def left_ring(self, member: Member, now: float, *, finished: bool, ends: bool = False) -> None:
        """A worker does not come along; what its process does from now on is its own affair."""
        ring = self.lockstep.ring
        if self._agents.get(self._node_of(member.id)) is not None:
            ring.leave(member.id, now, finished=finished, ends=ends)
        else:
            # Nobody will tell how its process ends.
            ring.leave(member.id, now, finished=finished)
            ring.exited(member.id, well=True)
        self.members.remove(member.id)
        self.work.drop_worker(member.id)
        if not finished:
            self.tell("info", f"worker-{member.id} leaves", now)

    def checkpoint_written(self, directory: str, now: float) -> None:
        """The ring wrote a checkpoint: the job goes back there from now on."""
        for note in self.checkpoints.written_by_ring(directory):
            self.apply(note, now)

    def _gone(self, worker: int, why: str, now: float) -> None:
        """A worker does not live any more, or is counted on no longer."""
        self.fleet.abandon(worker, why)
        if worker in self.members and self.outcome is None:
            self.tell("warning", f"worker-{worker} is gone: {why}; the others go on", now)
        self._drop(worker)

    def _give_up(self, worker: int, why: str, now: float) -> None:
        member = self.members.get(worker)
        agent = self._agents.get(self._node_of(worker))
        if member is not None and agent is not None:
            agent.kill.add(member.pid)
        self._gone(worker, why, now)

    def _node_of(self, worker: int) -> str:
        return next((node for (node, _), id in self._places.items() if id == worker), "")

    def _workers_of(self, node: str) -> list[int]:
        return [id for (name, _), id in self._places.items() if name == node]

    # ---- agents ----

    def agent_report(self, request: pb.AgentReportRequest, now: float) -> pb.AgentReportResponse:
        """An agent tells what its workers do.

        Raises:
            UsageError: it was asked to run something else than this job.
        """
        require_same_experiment(self.config, request)
        known = self._agents.get(request.node) is not None
        agent, replaced = self._agents.report(request.node, request.pid, request.host, now)
        if not known:
            self.tell("info", f"agent {request.node} on {request.host}", now)
        if replaced:
            for worker in self._workers_of(request.node):
                self._gone(worker, "its agent started again", now)
        if request.error:  # before the ends of workers: nobody goes on
            self.fail(request.error, now, traceback=request.traceback)
        agent.logs = {told.pid: told.log for told in request.workers}
        for told in request.workers:
            self._told(agent, told, now)
        agent.done = request.done
        agent.address, agent.port = request.address, request.port
        agent.begun = agent.begun or bool(request.workers)
        self._end_if_done(now)
        return self._answer(agent)

    def _told(self, agent: Agent, told: pb.AgentWorker, now: float) -> None:
        if told.exited:
            agent.kill.discard(told.pid)
        for worker in self._workers_of(agent.node):
            process = self.fleet.process("worker", worker)
            if process is None or process.pid != told.pid:
                continue
            process.log = told.log or process.log
            if told.exited:
                member = self.members.get(worker)
                asked = member is not None and member.draining
                self.lockstep.ring.exited(worker, well=told.code == 0 and not asked)
                how = f"signal {-told.code}" if told.code < 0 else f"exit code {told.code}"
                self._gone(worker, f"ended with {how}", now)

    def _answer(self, agent: Agent) -> pb.AgentReportResponse:
        over = self.outcome is not None
        agent.told = agent.told or over
        outcome = self.outcome
        rank, first = self._agents.rank(agent), self._agents.first
        return pb.AgentReportResponse(
            kill=sorted(agent.kill),
            node_rank=rank,
            master_addr=first.address if first is not None else "",
            master_port=first.port if first is not None else 0,
            nodes=self._agents.machines,
            workers_wanted=self.fleet.workers_wanted if self._scaled else 0,
            over=over,
            error="" if outcome is None else outcome.told,
            stopping=self.stopping.reason if self.stopping is not None else "",
        )

    def _lose_silent_agents(self, now: float) -> None:
        for agent in self._agents.silent(now):
            timeout_s = self.config.cluster.heartbeat_timeout_s
            why = f"agent {agent.node} is silent for {timeout_s:g} s"
            self.tell("warning", f"{why}: its workers are given up", now)
            for worker in self._workers_of(agent.node):
                if worker in self.members:
                    self._give_up(worker, why, now)
            if not len(self._agents):
                self.fail(f"{why}, and there is no other one: nobody is left to go on", now)

    # ---- torchrun ----

    def join_round(self, request: pb.JoinRoundRequest, now: float) -> pb.JoinRoundResponse | None:
        """An agent of torchrun asks for a place in the next round; None while it is not formed."""
        if self.outcome is not None:
            self._rounds.close()
        round = self._rounds.number
        place = self._rounds.ask(
            request.node,
            request.store,
            now,
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            last_call_s=request.last_call_s,
        )
        if self._rounds.number != round:
            self._new_round(now)
        if self._rounds.closed:
            return pb.JoinRoundResponse(closed=True)
        return None if place is None else pb.JoinRoundResponse(place=pb.Place(**vars(place)))

    def get_round(self, request: pb.GetRoundRequest, now: float) -> pb.GetRoundResponse:
        """An agent of torchrun asks how its round stands."""
        return pb.GetRoundResponse(**vars(self._rounds.look(request.node, request.round, now)))

    def leave_round(self, request: pb.LeaveRoundRequest, now: float) -> pb.LeaveRoundResponse:
        """An agent of torchrun leaves, after it has ended its workers."""
        self._rounds.leave(request.node)
        for worker in self._workers_of(request.node):
            self._gone(worker, "its agent left", now)
        return pb.LeaveRoundResponse()

    def close_rounds(self, request: pb.CloseRoundsRequest, now: float) -> pb.CloseRoundsResponse:
        """An agent of torchrun says that the job is over."""
        self._rounds.close()
        self._torchruns_error = self._torchruns_error or request.error
        return pb.CloseRoundsResponse()

    def _new_round(self, now: float) -> None:
        """Torchrun starts the workers of its nodes again; those of others will not come back."""
        self.lockstep.moved = True
        self.tell("info", f"round {self._rounds.number} of torchrun's nodes", now)
        for (node, _), worker in self._places.items():
            if worker in self.members and node not in self._rounds:
                self._gone(worker, f"{node} is not in the round", now)

    # ---- the user ----

    def scale(self, request: pb.ScaleRequest, now: float) -> str:
        """Another number of workers; the agent hears of it.

        Raises:
            UsageError: there are several agents, or none, which start as many as they were told.
        """
        machines = self._agents.machines
        if machines != 1:
            raise UsageError(
                f"{machines} agents start the workers of this job, each as many as its "
                "--nproc-per-node says; start or end an agent to change their number"
            )
        text = super().scale(request, now)
        self._scaled = True
        return text

    def describe(self, status: pb.GetStatusResponse) -> None:
        """Adds how far the script is."""
        if self._served:
            status.epochs = self.config.data.epochs
            return
        finished = self.outcome is not None and self.outcome.state == "finished"
        self._passes.describe(status, finished=finished)

    def done(self) -> tuple[int, int]:
        """(records of all passes, updates), as the members of the ring told."""
        if self._served:
            return super().done()
        steps = [max(m.version, m.steps) for m in self.members if self.lockstep.has(m.id)]
        return self._passes.records, max([self._steps, *steps])

    # ---- time ----

    def tick(self, now: float) -> list[Any]:
        """What is to be done now: nothing, but time passes for agents and rounds too."""
        if self.outcome is None:
            self._lose_silent_agents(now)
            self._fail_if_abandoned(now)
            self._fail_if_nothing_begins(now)
        if self.outcome is not None or self.stopping is not None:
            self._rounds.close()
        elif self._rounds.form(now):
            self._new_round(now)
        actions = super().tick(now)
        over = self.outcome is not None and not self.fleet.alive("ps")
        self.over = over and self._have_all_heard(now)
        return actions

    def _fail_if_abandoned(self, now: float) -> None:
        """Nobody comes who could do what rank 0 was to do at the end."""
        if not self.lockstep.ring.abandoned:
            self._abandoned_at = None
        elif self._abandoned_at is None:
            self._abandoned_at = now
        elif now - self._abandoned_at >= _DESERTED_S:
            newest = self.checkpoints.shown
            self.fail(
                "rank 0 was lost before its script came to its end, and nobody took its place for "
                f"{_DESERTED_S:g} s: what it saves may be missing"
                + (f"; the newest checkpoint is {newest}" if newest else ""),
                now,
            )

    def _fail_if_nothing_begins(self, now: float) -> None:
        """Workers wait for a first ring, and those that it needs do not come.

        Others may have begun without one: a script is free to make a process group of its own.
        """
        ring, limit_s = self.lockstep.ring, self.config.cluster.join_timeout_s
        if ring.number or not ring.waiting:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since >= limit_s:
            least = self.config.cluster.min_workers
            self.fail(
                f"nothing began within {limit_s:g} s (--rdzv-conf join_timeout): "
                f"{ring.waiting} of at least {least} workers came to the loader of the script, "
                "the others ended before it or are still on their way",
                now,
            )

    def _have_all_heard(self, now: float) -> bool:
        """Nobody is left who would go on, or wait for this master."""
        assert self.outcome is not None
        if len(self._agents) or self.outcome.state == "finished":
            return self._agents.over(now, linger_s=_LINGER_S)
        left = not len(self.members) and self._rounds.deserted(now)
        return left or now - self.ended_at >= _LINGER_S

    def _advance(self, now: float) -> None:
        if self._served:
            self._scripts_over = self._are_scripts_over(now)
            super()._advance(now)
            self._end_if_done(now)
            return
        for member in self.members:
            if self.lockstep.has(member.id) and member.ring == self.lockstep.ring.number:
                self._passes.moved(member.data_pass, member)
        records, self._steps = self.done()
        if self._returned and records:
            # Of all these nobody knows how long they took.
            self.records_before, self._returned = records, False
        self.rates.sample(now, records, self._steps)
        self._end_if_done(now)

    def last_words(self, request: pb.HeartbeatRequest) -> None:
        """A worker that left the ring says how far it had come."""
        current = self.lockstep.ring.current
        if current is not None and request.worker_id in current.workers:
            self._passes.moved(request.pass_index, request)
            self.members.last_words(loss=request.loss, logged=request.logged)
            self._steps = max(self._steps, request.steps, request.version)

    def _has_more_than_is_kept(self) -> bool:
        """In a ring rank 0 knows whether there are checkpoints: the script may have asked."""
        if self._served:
            return super()._has_more_than_is_kept()
        return bool(self.lockstep.ring.living())

    def _heed_stopping(self, stopping: Stopping, now: float) -> None:
        """Members of a ring leave it after an update; the last of them keeps the model."""
        if not self._served and not len(self.members):
            self._stopped(now)
        else:
            super()._heed_stopping(stopping, now)

    @property
    def _awaits_model(self) -> bool:
        """See :class:`Job`; rank 0 of a ring tells when it has written."""
        return not self._served

    def _end_if_done(self, now: float) -> None:
        if self.outcome is not None or self.stopping is not None:
            return
        done = self._are_scripts_over(now)
        if done and self._served and self.work.ready and not self.settled:
            return  # the last checkpoint is still being written
        if done and self._torchruns_error and not self.lockstep.ring.finished:
            self.fail(self._torchruns_error, now)
        elif done:
            self.tell("info", "finished", now)
            self._end(Outcome("finished", 0), now, leave_s=0.0)
        elif self._rounds.left and not (len(self._agents) or len(self.members)):
            self.stop("all agents of torchrun left", now)
        elif len(self._agents) or len(self.members) or not self._rounds.deserted(now):
            self._deserted_at = None
        elif self._deserted_at is None:
            self._deserted_at = now
        elif now - self._deserted_at >= _DESERTED_S:
            self.fail(f"no agent and no worker for {_DESERTED_S:g} s: nobody is left", now)

    def _are_scripts_over(self, now: float) -> bool:
        if len(self._agents):
            return self._agents.done
        # Without agents (torchrun) the workers' own word counts.
        done = self.lockstep.ring.finished and not len(self.members)
        return done or (self._rounds.closed and self._rounds.deserted(now))

    def _renew(self, text: str, now: float) -> None:
        super()._renew(text, now)
        self._passes, self._steps = Passes(), 0

    # ---- a restart of the master ----

    def durable(self) -> dict[str, Any]:
        """What a restarted master goes on with, as JSON can say it."""
        return {
            "strategy": self.fleet.strategy,
            "ring": self.lockstep.ring.export(),
            "rounds": self._rounds.export(),
            "agents": self._agents.export(),
            "incarnation": self.fleet.incarnation,
            "restored_from": self.fleet.restored_from,
            "values_only": self.fleet.values_only,
            "checkpoints": self.checkpoints.to_state(),
            "workers_wanted": self.fleet.workers_wanted if self._scaled else 0,
            "next_id": self._next_id,
            "workers": [
                {"id": m.id, "pid": m.pid, "host": m.host, "node": node, "local_rank": local_rank}
                for (node, local_rank), id in self._places.items()
                if (m := self.members.get(id)) is not None
            ],
        }

    def go_on(self, state: dict[str, Any], now: float) -> None:
        """The inverse of :meth:`durable`; called before :meth:`start`. Everybody was heard now."""
        self._returned = True
        self.lockstep.ring = Ring.restored(state["ring"])
        self._rounds = Rounds.restored(state["rounds"], now)
        self._agents.restore(state["agents"], now)
        self.checkpoints.from_state(state["checkpoints"])
        self._next_id = state["next_id"]
        if state["strategy"] == "allreduce":
            self.fleet.decide(
                "allreduce",
                restore=state["restored_from"],
                values_only=state["values_only"],
                incarnation=state["incarnation"],
            )
        if state["workers_wanted"]:
            self.fleet.scale(state["workers_wanted"])
            self._scaled = True
        for worker in state["workers"]:
            id = worker["id"]
            self._places[worker["node"], worker["local_rank"]] = id
            self.fleet.adopt(id, worker["pid"])
            self.members.register(id, worker["pid"], worker["host"], now)
        if state["strategy"] == "ps":
            self.lose_servers(now)
        if self.lockstep.ring.number:
            self.leased(now)
        count = len(self.members)
        go_on = "worker goes on" if count == 1 else "workers go on"
        self.tell("info", f"the master is back: {count} {go_on}", now)
