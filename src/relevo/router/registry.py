"""The workers that have registered, and what has been dispatched to each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from relevo.router.policy import WorkerView
from relevo.types import Role
from relevo.wire.liveness import Liveness
from relevo.wire.messages import HandoffHeld, Load, Register, by_layer


@dataclass(frozen=True)
class Held:
    """A hand-off that waits to be released, since `since` (time.monotonic)."""

    what: HandoffHeld
    since: float

    def checksums(self) -> dict[str, list[str]]:
        """Of what was sent and of what arrived, hexadecimal, one per layer."""
        return {
            "sent": [one.hex() for one in by_layer(self.what.sent)],
            "arrived": [one.hex() for one in by_layer(self.what.arrived)],
        }


@dataclass
class Member:
    """A registered worker. `requests` run on it; `prefilling` maps requests whose prompt it
    computes to their number of tokens; `held` are hand-offs that wait to be released."""

    route: bytes
    info: Register
    liveness: Liveness
    load: Load = field(default_factory=Load)
    counters: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)
    prefilling: dict[str, int] = field(default_factory=dict)

    def view(self) -> WorkerView:
        return WorkerView(
            name=self.info.worker,
            role=self.info.role,
            requests=len(self.requests),
            waiting=self.load.waiting,
            outstanding_tokens=sum(self.prefilling.values()),
            credit_tokens=self.info.credit_tokens,
            local_prefill_tokens=self.info.local_prefill_tokens,
        )


class Registry:
    """Members by name and by route."""

    def __init__(self) -> None:
        self._by_name: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._by_name.values()))

    def add(self, member: Member) -> Member | None:
        """Returns the older incarnation of the same name that this one replaces, if any."""
        replaced = self._by_name.get(member.info.worker)
        self._by_name[member.info.worker] = member
        return replaced

    def remove(self, member: Member) -> None:
        if self._by_name.get(member.info.worker) is member:
            del self._by_name[member.info.worker]

    def get(self, name: str) -> Member | None:
        return self._by_name.get(name)

    def by_route(self, route: bytes) -> Member | None:
        return next((m for m in self._by_name.values() if m.route == route), None)

    def views(self) -> list[WorkerView]:
        return [member.view() for member in self._by_name.values()]

    def generating(self) -> list[Member]:
        """Workers that can generate."""
        return [m for m in self._by_name.values() if m.info.role is not Role.PREFILL]
