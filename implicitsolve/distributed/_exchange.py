"""What each rank takes as given, from the tips of all ranks: found by every rank for all, or in groups first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from implicitsolve._typing import HostArray, Indices
from implicitsolve.distributed._communicator import Communicator
from implicitsolve.distributed._layout import Runs, layout
from implicitsolve.distributed._reduced import Interfaces, Reduced
from implicitsolve.distributed._rows import adjoint

MOST_TOGETHER = 64  # ranks up to which every rank solves for all interfaces
GROUPS = 1.6  # times sqrt(P) of them: a group's system, with its spikes, takes as long as that between groups
ALL = slice(None)


class Exchange(Protocol):
    """The systems of the interfaces, factored.

    Attributes
    ----------
    found : ndarray (B, 2)
        Of each system of the batch: where it is singular (infinite if it is not), and its growth. The same everywhere.
    """

    @property
    def found(self) -> HostArray: ...

    @property
    def nbytes(self) -> int: ...

    def given(self, tips: HostArray) -> HostArray:
        """What this rank takes as given (B, m, K), for its first and last rows (B, m, K) of g."""
        ...

    def tips(self, given: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """The adjoint: first rows (B, upper, K) and last rows (B, lower, K) for what this rank gives (B, m, K)."""
        ...

    def take(self, indices: Indices) -> Exchange:
        """The same for some systems."""
        ...


def exchange(
    comm: Communicator, interfaces: Interfaces, tips: HostArray, found: HostArray, first_blocks: HostArray
) -> Exchange:
    """Set up and factor the systems of the interfaces.

    Parameters
    ----------
    comm, interfaces : Communicator, Interfaces
        The ranks, and where they meet.
    tips : ndarray (B, m, m)
        First and last rows of this rank's spikes.
    found : ndarray (B, 3)
        Where this rank's rows are singular (infinite if not), their growth, and the kind of what is given.
    first_blocks : ndarray (ranks,)
        The number of every rank's first block.
    """
    of = InGroups.of if comm.size > MOST_TOGETHER else Together.of
    return of(comm, interfaces, tips, found, first_blocks)


@dataclass(frozen=True)
class Together:
    """One system of all interfaces, which every rank has. One allgather for whatever is asked."""

    comm: Communicator
    reduced: Reduced
    found: HostArray

    @classmethod
    def of(
        cls, comm: Communicator, interfaces: Interfaces, tips: HostArray, found: HostArray, first_blocks: HostArray
    ) -> Together:
        """One allgather."""
        tips, found = gathered(comm, tips, found)
        reduced = Reduced.of(interfaces, tips, found[..., 2], found[..., 2])
        return cls(comm, reduced, overall(found, reduced.verdict(first_blocks[interfaces.right])[None]))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.reduced.nbytes

    def given(self, tips: HostArray) -> HostArray:
        """See `Exchange`."""
        exchanged = self.reduced.solve(gathered(self.comm, tips)[0])
        return self.reduced.interfaces.given(exchanged, self.comm.rank)

    def tips(self, given: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """See `Exchange`."""
        tips = self.reduced.solve_adjoint(gathered(self.comm, given)[0])
        return self.reduced.interfaces.from_tips(tips, self.comm.rank)

    def take(self, indices: Indices) -> Together:
        """See `Exchange`."""
        return replace(self, reduced=self.reduced.take(indices), found=self.found[indices])


@dataclass(frozen=True)
class Groups:
    """Runs of neighbouring ranks, and this rank's among them.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    counts : tuple of int
        Ranks in each group.
    """

    comm: Communicator
    counts: Runs

    @cached_property
    def leaders(self) -> Indices:
        """The first rank of each group."""
        return np.asarray(self.counts.starts)

    @cached_property
    def own(self) -> int:
        """The group of this rank."""
        return int(np.searchsorted(self.leaders, self.comm.rank, side="right")) - 1

    @cached_property
    def members(self) -> slice:
        """The ranks of this rank's group."""
        first = int(self.leaders[self.own])
        return slice(first, first + self.counts[self.own])

    @property
    def place(self) -> int:
        """The place of this rank in its group."""
        return self.comm.rank - self.members.start

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its group."""
        return self.place == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank is the last of its group."""
        return self.comm.rank == self.members.stop - 1

    def of_members(self, part: HostArray) -> HostArray:
        """What all ranks of the own group have, (ranks of the group, ...): a message to each neighbour for each."""
        behind: list[HostArray | None] = [part]
        ahead: list[HostArray | None] = [part]
        for _ in range(max(self.counts) - 1):
            from_previous, from_next = self.comm.exchange(ahead[-1], behind[-1])
            behind.append(from_previous)
            ahead.append(from_next)
        place, count = self.place, self.counts[self.own]
        known = [*behind[place:0:-1], *ahead[: count - place]]
        return np.stack([part for part in known if part is not None])  # none is None inside the group

    def of_leaders(self, *parts: HostArray) -> list[HostArray]:
        """What the first ranks of all groups have of some arrays, (groups, ...) each. One allgather."""
        return gathered(self.comm, *parts, of=self.leaders, giving=self.leaders)


@dataclass(frozen=True)
class Group:
    """The interfaces inside a group of ranks, for given values beyond its ends.

    Parameters
    ----------
    reduced : Reduced
        Their system.
    ends : ndarray (2, B, m, m)
        Tips of the spikes of the first and the last rank.
    """

    reduced: Reduced
    ends: HostArray

    def from_outside(self, given: HostArray) -> HostArray:
        """Tips of all members (ranks, B, m, K) for what the group takes as given (B, m, K), and nothing else."""
        lower = self.reduced.interfaces.lower
        tips = np.zeros((self.reduced.interfaces.ranks, *given.shape), dtype=given.dtype)
        tips[0] -= self.ends[0][:, :, :lower] @ given[:, :lower]
        tips[-1] -= self.ends[1][:, :, lower:] @ given[:, lower:]
        return tips

    def tips(self, of_members: HostArray, exchanged: HostArray) -> HostArray:
        """First and last rows of the group (B, m, K), from the members' and from what they exchange."""
        interfaces = self.reduced.interfaces
        first = of_members[0] - self.ends[0] @ interfaces.given(exchanged, 0)
        last = of_members[-1] - self.ends[1] @ interfaces.given(exchanged, interfaces.ranks - 1)
        return np.concatenate([first[:, : interfaces.upper], last[:, interfaces.upper :]], axis=1)

    def without(self, given: HostArray, first: HostArray | None, last: HostArray | None) -> HostArray:
        """What members give (ranks, B, m, K), less the contributions of the group's tips: the adjoint of `tips`."""
        lower, upper, rest = self.reduced.interfaces.lower, self.reduced.interfaces.upper, given.copy()
        if first is not None:
            rest[0][:, lower:] -= adjoint(self.ends[0][:, :upper, lower:]) @ first
        if last is not None:
            rest[-1][:, :lower] -= adjoint(self.ends[1][:, upper:, :lower]) @ last
        return rest

    def take(self, indices: Indices) -> Group:
        """The same for some systems."""
        return Group(self.reduced.take(indices), self.ends[:, indices])


@dataclass(frozen=True)
class InGroups:
    """A system for each group of ranks, which its members have, and one of the interfaces between groups.

    A group depends on what lies beyond it as a rank does: it has its own tips, and the interfaces between groups
    the same kind of system as those between ranks. Two allgathers for whatever is asked.

    Attributes
    ----------
    groups, group : Groups, Group
        All of them, and this rank's.
    spikes : ndarray (interfaces, B, m, m)
        What is exchanged inside the group, for each number that the group takes as given.
    outer : Reduced
        The interfaces between groups.
    """

    groups: Groups
    group: Group
    spikes: HostArray
    outer: Reduced
    found: HostArray

    @classmethod
    def of(
        cls, comm: Communicator, interfaces: Interfaces, tips: HostArray, found: HostArray, first_blocks: HostArray
    ) -> InGroups:
        """Two allgathers, and one message to each neighbour for each rank of a group."""
        groups = Groups(comm, layout(comm.size, math.ceil(GROUPS * comm.size**0.5)))
        (found,) = gathered(comm, found)
        members, kinds = groups.members, found[..., 2]
        of_members = groups.of_members(tips)
        inside = replace(interfaces, ranks=of_members.shape[0], periodic=False)
        group = Group(Reduced.of(inside, of_members, kinds[members], kinds[members]), of_members[[0, -1]])
        with np.errstate(all="ignore"):
            outside = group.from_outside(np.broadcast_to(np.eye(tips.shape[1], dtype=tips.dtype), tips.shape))
            spikes = group.reduced.solve(outside)
            own_tips = -group.tips(outside, spikes)
            of_group = group.reduced.verdict(first_blocks[members][1:])
            of_group[:, 1] *= np.max(np.abs(spikes), axis=(0, 2, 3), initial=1.0)
        of_groups, of_all = groups.of_leaders(own_tips, of_group)
        between, leaders = replace(interfaces, ranks=len(groups.counts)), groups.leaders
        outer = Reduced.of(between, of_groups, kinds[leaders], kinds[leaders + np.asarray(groups.counts) - 1])
        last = outer.verdict(first_blocks[leaders[between.right]])
        return cls(groups, group, spikes, outer, overall(found, of_all, last[None]))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.group.reduced.nbytes + self.group.ends.nbytes + self.spikes.nbytes + self.outer.nbytes

    def given(self, tips: HostArray) -> HostArray:
        """See `Exchange`."""
        groups, inner, lower = self.groups, self.group.reduced, self.outer.interfaces.lower
        (of_members,) = gathered(groups.comm, tips, of=groups.members)
        exchanged = inner.solve(of_members)
        (of_groups,) = groups.of_leaders(self.group.tips(of_members, exchanged))
        outside = self.outer.interfaces.given(self.outer.solve(of_groups), groups.own)
        given = inner.interfaces.given(exchanged + self.spikes @ outside, groups.place)
        if groups.is_first:
            given[:, :lower] = outside[:, :lower]
        if groups.is_last:
            given[:, lower:] = outside[:, lower:]
        return given

    def tips(self, given: HostArray) -> tuple[HostArray | None, HostArray | None]:
        """See `Exchange`."""
        groups, inner, lower = self.groups, self.group.reduced, self.outer.interfaces.lower
        (of_members,) = gathered(groups.comm, given, of=groups.members)
        own = np.concatenate([of_members[0][:, :lower], of_members[-1][:, lower:]], axis=1)
        inside = inner.interfaces.from_given(of_members)
        own += np.sum(self.spikes.conj().swapaxes(2, 3) @ inside, axis=0)
        at_groups = self.outer.solve_adjoint(groups.of_leaders(own)[0])
        of_group = self.outer.interfaces.from_tips(at_groups, groups.own)
        tips = inner.solve_adjoint(self.group.without(of_members, *of_group))
        first, last = inner.interfaces.from_tips(tips, groups.place)
        return of_group[0] if groups.is_first else first, of_group[1] if groups.is_last else last

    def take(self, indices: Indices) -> InGroups:
        """See `Exchange`."""
        group, outer = self.group.take(indices), self.outer.take(indices)
        return InGroups(self.groups, group, self.spikes[:, indices], outer, self.found[indices])


def gathered(
    comm: Communicator, *parts: HostArray, of: Indices | slice = ALL, giving: Indices | slice = ALL
) -> list[HostArray]:
    """What some ranks have of some arrays, (ranks, ...) each, by one allgather; shapes are the same everywhere.

    Parameters
    ----------
    comm : Communicator
        The ranks, all of which call this.
    parts : ndarray
        What this rank has.
    of : slice or ndarray of int, optional
        The ranks that are asked about. Default: all.
    giving : slice or ndarray of int, optional
        The ranks that contribute; the others do not. Default: all.
    """
    whole = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
    sizes = np.zeros(comm.size, dtype=int)
    sizes[giving] = whole.size
    everything = comm.allgather(whole[: sizes[comm.rank]], [(size,) for size in sizes.tolist()])
    asked = np.arange(comm.size)[of].tolist()
    table = np.concatenate([everything[rank] for rank in asked]).reshape(len(asked), whole.size)
    ends = np.cumsum([part.nbytes for part in parts])
    return [
        np.ascontiguousarray(table[:, end - part.nbytes : end]).view(part.dtype).reshape(len(asked), *part.shape)
        for part, end in zip(parts, ends)
    ]


def overall(ranks: HostArray, *systems: HostArray) -> HostArray:
    """Where each system of the batch is singular, and its growth (B, 2), from ranks (P, B, 3) and further systems."""
    singular, growth = ranks[..., 0].min(axis=0), ranks[..., 1].max(axis=0)
    with np.errstate(invalid="ignore"):
        for found in systems:  # (systems, B, 2)
            singular = np.where(np.isfinite(singular), singular, found[..., 0].min(axis=0))
            growth = growth * found[..., 1].max(axis=0)
    return np.stack([singular, np.where(np.isfinite(singular) | np.isnan(growth), np.inf, growth)], axis=1)
