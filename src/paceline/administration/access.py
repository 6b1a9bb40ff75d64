"""Who asks: API keys and the administrators' tokens, compared in constant time, and each key's limits."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, field

from pydantic import SecretStr

from paceline.config.server import ApiKey, ServerSettings
from paceline.errors import AuthenticationError, BusyError, ForbiddenError

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@dataclass(eq=False)
class Caller:
    """Somebody who may ask, and how many of their requests there are."""

    name: str | None = None
    """Of the API key; none where the server asks for no key."""
    route: str | None = None
    max_concurrent: int | None = None
    max_queued: int = 0
    num_open: int = field(default=0, init=False)
    """Requests that are answered or wait for their turn."""

    def __post_init__(self) -> None:
        self._turns = None if self.max_concurrent is None else asyncio.Semaphore(self.max_concurrent)

    async def take_turn(self) -> None:
        """Wait for a turn; `end_turn` gives it back.

        Raises:
            BusyError: too many requests of this key wait already.
        """
        if self._turns is None or self.max_concurrent is None:
            self.num_open += 1
            return
        most = self.max_concurrent + self.max_queued
        if self.num_open >= most:
            raise BusyError(
                given=f"a request of key {self.name!r}, of which {self.num_open} run or wait",
                expected=f"at most {most} at a time",
                remedy="Try again later",
            )
        self.num_open += 1
        try:
            await self._turns.acquire()
        except BaseException:
            self.num_open -= 1
            raise

    def end_turn(self) -> None:
        """Let the next one go."""
        self.num_open -= 1
        if self._turns is not None:
            self._turns.release()


class Gate:
    """Tells callers by their keys."""

    def __init__(self, settings: ServerSettings) -> None:
        self._tokens = settings.tokens
        self._admin_remote = settings.admin_remote
        self._anybody = Caller()
        self._keys = [(key.key, _caller(name, key)) for name, key in settings.api_keys.items()]

    def caller(self, authorization: str | None) -> Caller:
        """Return who sent a request.

        Raises:
            AuthenticationError: keys are asked for, and this is none of them.
        """
        if not self._keys:
            return self._anybody
        given = bearer(authorization)
        found = None
        for key, caller in self._keys:  # all of them, so that time tells nothing
            if is_same(key, given):
                found = caller
        if found is None:
            raise AuthenticationError(
                given="no API key" if not given else "an API key that is not known here",
                expected="the header Authorization: Bearer KEY with a key of this server",
                remedy="Send a key that the server's configuration has",
            )
        return found

    def is_admin(self, authorization: str | None) -> bool:
        """Whether a request carries an administrator's token."""
        return self._admin(authorization) is not None

    def _admin(self, authorization: str | None) -> str | None:
        given, found = bearer(authorization), None
        for name, token in self._tokens.items():  # all of them, so that time tells nothing
            if is_same(token, given):
                found = name
        return found

    def check_admin(self, authorization: str | None, host: str | None) -> str:
        """Return the name of who administrates, and refuse whoever may not.

        Args:
            authorization: the header.
            host: where the request comes from.

        Raises:
            ForbiddenError: there is no administration, or not from there.
            AuthenticationError: the token is none of them.
        """
        if not self._tokens:
            raise ForbiddenError(
                given="administration of a server without an admin token",
                expected="a token in its configuration",
                remedy="Set server.admin_token and start it again",
            )
        if not self._admin_remote and host not in LOOPBACK:
            raise ForbiddenError(
                given="administration from another machine",
                expected="a request from the server's own",
                remedy="Ask from there, or set server.admin_remote: true",
            )
        name = self._admin(authorization)
        if name is None:
            raise AuthenticationError(
                given="no admin token" if not bearer(authorization) else "another token",
                expected="the header Authorization: Bearer TOKEN with a token of its configuration",
                remedy="Send server.admin_token, or one of server.admin_tokens",
            )
        return name


def bearer(authorization: str | None) -> str:
    """Return the key of an `Authorization` header; empty where there is none."""
    kind, _, key = (authorization or "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


def is_same(secret: SecretStr, given: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(secret.get_secret_value().encode(), given.encode("utf-8", "replace"))


def _caller(name: str, key: ApiKey) -> Caller:
    return Caller(name, key.route, key.max_concurrent, key.max_queued)
