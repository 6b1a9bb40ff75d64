"""Routes of the embedded engine: put in force between two of its steps."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.clock import monotonic
from paceline.config.routes import RouteSettings
from paceline.engine.engine import Engine
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.routes import RouteTable
from paceline.runtime import Runtime


class EngineRoutes:
    """An `Enforcement` through `Runtime.call`.

    Args:
        runtime: where the policy is.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def check(self, name: str, settings: RouteSettings) -> None:
        """Accept whatever `check_route` does: this engine follows all of it."""

    async def put_in_force(
        self, routes: Mapping[str, RouteSettings], default: str | None, by: Mapping[str, str], otherwise: str
    ) -> None:
        """Let the policy go by these routes from the next step on."""

        def apply(engine: Engine) -> None:
            policy = engine.policy
            assert isinstance(policy, SpeculationPolicy)
            known = {name: policy.routes[name] for name in policy.routes.names}
            if routes.keys() - known.keys() or policy.routes.default != default:
                # Routes that are gone stay for the requests that are still on them; no new one comes in.
                policy.routes = RouteTable({**routes, **known}, default)
            for name, settings in routes.items():
                if known.get(name) != settings:
                    policy.set_route(name, settings, by=by.get(name, otherwise), now=monotonic())

        await self._runtime.call(apply)
