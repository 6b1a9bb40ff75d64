"""Which requests may draft from one another's answers."""

from __future__ import annotations

from collections.abc import Hashable

from paceline.records import AnswerSharing, Request


def answer_scope(request: Request, sharing: AnswerSharing) -> Hashable:
    """Return a key that two requests share exactly when one's drafts may come from the other's answer.

    Drafts show in timing and in the counts of a result, so by default neither another route nor another
    tenant can see what was answered.
    """
    is_by_tenant = sharing in (AnswerSharing.TENANT_AND_ROUTE, AnswerSharing.TENANT)
    is_by_route = sharing in (AnswerSharing.TENANT_AND_ROUTE, AnswerSharing.ROUTE)
    return (request.tenant if is_by_tenant else None, request.route if is_by_route else None)
