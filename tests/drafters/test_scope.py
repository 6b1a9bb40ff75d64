from __future__ import annotations

import pytest

from paceline.drafters.scope import answer_scope
from paceline.records import AnswerSharing, Request, SamplingParams, SpeculationParams


def asked(tenant: str | None, route: str | None) -> Request:
    return Request("r", (1,), SamplingParams(), SpeculationParams(), 0, route=route, tenant=tenant)


@pytest.mark.parametrize(
    ("sharing", "across_tenants", "across_routes"),
    [
        (AnswerSharing.TENANT_AND_ROUTE, False, False),
        (AnswerSharing.ROUTE, True, False),
        (AnswerSharing.TENANT, False, True),
        (AnswerSharing.ALL, True, True),
    ],
)
def test_who_shares_with_whom(sharing: AnswerSharing, across_tenants: bool, across_routes: bool) -> None:
    first, other_tenant, other_route = (
        answer_scope(asked(tenant, route), sharing) for tenant, route in (("t", "r"), ("u", "r"), ("t", "s"))
    )
    assert answer_scope(asked("t", "r"), sharing) == first
    assert (first == other_tenant) == across_tenants
    assert (first == other_route) == across_routes
    # A missing name is no wildcard, and a tenant is not mistaken for a route.
    assert (answer_scope(asked(None, "r"), sharing) == first) == across_tenants
    assert (answer_scope(asked("t", None), sharing) == first) == across_routes
