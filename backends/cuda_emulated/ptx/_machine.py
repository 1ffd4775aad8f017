"""The threads of some blocks, run together: who executes which instructions next.

Threads at the same instruction execute it at once, each step an operation on arrays. Those with the lowest instruction
go first, up to the next place that others may come to, so that threads which branched apart meet again. At an
instruction of a whole warp or block, those who come early wait; where nobody is left who could come, that is a fault.
"""

from dataclasses import dataclass

import numpy as np

from pagedcache.backends.cuda_emulated.ptx._fault import PtxFault
from pagedcache.backends.cuda_emulated.ptx._memory import Array
from pagedcache.backends.cuda_emulated.ptx._parse import Entry, Instruction, Name
from pagedcache.backends.cuda_emulated.ptx._shared import WARP
from pagedcache.backends.cuda_emulated.ptx._state import Lanes, State
from pagedcache.backends.cuda_emulated.ptx._steps import Run, make_step, team_of

__all__ = ["Code", "Machine"]

WAITS = 1 << 40  # added to the place of a thread that waits for others
ENDED = 1 << 50  # the place of a thread that is done


@dataclass(frozen=True)
class Step:
    """An instruction, ready to run."""

    instruction: Instruction
    run: Run
    team: str | None  # who has to be together: block, warp or nobody
    target: int | None  # of a branch
    ends: bool  # the thread


class Code:
    """An entry's instructions, ready to run; a place is an index of them."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.steps = [self._step(instruction) for instruction in entry.instructions]
        after = [i + 1 for i, step in enumerate(self.steps) if step.target is not None or step.ends]
        targets = [step.target for step in self.steps if step.target is not None]
        self._leaders = np.unique([*targets, *after, len(self.steps)])

    def until(self, place: int) -> int:
        """Return the first place after this one that others may come to."""
        return int(self._leaders[np.searchsorted(self._leaders, place, side="right")])

    def described(self, instruction: Instruction) -> str:
        """Return where an instruction stands, for messages."""
        where = f"{self.entry.name}, PTX line {instruction.line} `{instruction.text}`"
        return f"{where} of {instruction.source}" if instruction.source else where

    def _step(self, instruction: Instruction) -> Step:
        base = instruction.opcode.split(".")[0]
        target = None
        try:
            if base == "bra":
                label = instruction.operands[0]
                if not isinstance(label, Name) or label.name not in self.entry.labels:
                    raise PtxFault("a branch to no label")
                target = self.entry.labels[label.name]
            team = team_of(instruction.opcode)
            if team and instruction.guard:
                raise PtxFault("an instruction of many threads under a condition is not known")
            return Step(instruction, make_step(instruction), team, target, base in ("ret", "exit"))
        except (PtxFault, KeyError, ValueError) as fault:
            raise PtxFault(f"{self.described(instruction)}: {fault}") from fault


class Machine:
    """Runs code on a state until all threads are done."""

    def __init__(self, code: Code, state: State) -> None:
        self._code, self._state = code, state
        self._at = np.zeros(state.threads, np.int64)  # place of each thread
        self._teams = {"warp": WARP, "block": state.block_threads}

    def run(self) -> None:
        """Run all threads to their ends."""
        with np.errstate(all="ignore"):
            while (place := int(self._at.min())) != ENDED:
                if place >= WAITS:
                    self._wake(place - WAITS)
                    continue
                self._run_from(place, Lanes(np.flatnonzero(self._at == place), self._state.threads))

    def _run_from(self, place: int, lanes: Lanes) -> None:
        """Run the threads at a place up to the next one that others may come to."""
        end = self._code.until(place)
        acting = lanes
        try:
            while place < end:
                step = self._code.steps[place]
                if step.team and not self._assembled(step.team, place, lanes):
                    return
                acting = lanes if step.instruction.guard is None else self._guarded(step, lanes)
                if acting.count:
                    step.run(self._state, acting)
                    if step.ends and self._state.copies.outstanding(acting.index):
                        raise PtxFault("a thread ends while its copies are on their way")
                place += 1
                if step.target is not None or step.ends:
                    self._at[lanes.index] = place
                    self._at[acting.index] = ENDED if step.target is None else step.target
                    return
        except PtxFault as fault:
            raise self._described(fault, place, acting) from fault
        self._at[lanes.index] = end

    def _guarded(self, step: Step, lanes: Lanes) -> Lanes:
        """Return the lanes for which the condition of an instruction holds."""
        assert step.instruction.guard is not None
        holds = self._state.registers[step.instruction.guard.index]
        if holds is None:
            raise PtxFault(f"register {step.instruction.guard.name} is read before anybody wrote it")
        return Lanes(lanes.index[holds[lanes.index] != step.instruction.negated], self._state.threads)

    def _assembled(self, team: str, place: int, lanes: Lanes) -> bool:
        """Whether all teams of the lanes are complete; if not, those of the others wait, and none goes on."""
        if lanes.every or (team == "warp" and lanes.whole_warps):
            return True
        here = np.zeros(self._state.threads, np.bool_)
        here[lanes.index] = True
        if self._complete(team, here)[lanes.index].all():
            return True
        here |= self._at == place + WAITS
        complete = self._complete(team, here)
        self._at[here] = np.where(complete[here], place, place + WAITS)
        return False

    def _complete(self, team: str, here: Array) -> Array:
        """Return for each thread whether all of its team are here; threads that are done belong to no block."""
        if team == "block":
            here = here | (self._at == ENDED)
        size = self._teams[team]
        return np.repeat(here.reshape(-1, size).all(axis=1), size)

    def _wake(self, place: int) -> None:
        """Nobody can go on: let those go whose team is complete, others having ended since."""
        here = self._at == place + WAITS
        step = self._code.steps[place]
        assert step.team is not None
        free = here & self._complete(step.team, here)
        if free.any():
            self._at[free] = place
            return
        waiting = Lanes(np.flatnonzero(here), self._state.threads)
        team = waiting.index // self._teams[step.team]
        mine = team == team[0]
        if step.team == "block":
            members = (self._state.block == self._state.block[waiting.index[0]]) & (self._at != ENDED)
            what = f"reached by {mine.sum()} of the block's {members.sum()} threads that are not done"
        else:
            what = f"warp not converged, {mine.sum()} of {WARP} lanes are here"
        raise self._described(PtxFault(what, 0), place, waiting)

    def _described(self, fault: PtxFault, place: int, lanes: Lanes) -> PtxFault:
        """Return the fault with where and in which thread it happened."""
        thread = int(lanes.index[fault.lane or 0])
        block = int(self._state.names["%ctaid.x"][thread])
        where = self._code.described(self._code.steps[place].instruction)
        return PtxFault(f"{where}, block {block}, thread {thread % self._state.block_threads}: {fault}")
