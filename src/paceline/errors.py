"""Every error the package raises on purpose, drawn as one tree.

PacelineError
├── ConfigError                  a flag, key or environment variable is wrong
├── ModelError                   a model's files cannot be used
│   ├── ModelNotFoundError       no such preset, file or folder
│   ├── ModelFileError           the file is damaged: truncated, wrong magic, inconsistent
│   ├── UnsupportedModelError    the file is sound, but its architecture or tensor type is not supported
│   ├── MissingTensorError       a tensor that the architecture needs is not in the file
│   ├── ChatTemplateError        no chat template, or the template refused the messages
│   └── VocabularyMismatchError  draft and target do not share a vocabulary
├── DownloadError                a file could not be fetched
│   └── HashMismatchError        the fetched bytes are not the pinned ones
├── RequestError                 one request is wrong; others go on
│   ├── InvalidParameterError    a parameter is unknown or out of range
│   ├── EmptyPromptError         the prompt has no tokens
│   ├── PromptTooLongError       the prompt leaves no room in the context
│   ├── InputFileError           a line of a request file cannot be read
│   ├── UnknownModelError        no model of that name is served
│   ├── UnknownRouteError        no route has that name
│   ├── BodyTooLargeError        the body of an HTTP request is larger than the server takes
│   └── GenerationError          no next token can be chosen: NaN logits, or every token banned
├── AccessError                  who asks may not
│   ├── AuthenticationError      no key, or none that is known
│   └── ForbiddenError           a known caller, or place, that may not do this
├── ServingError                 a sound request was not taken, or not finished
│   ├── BusyError                the queue is full; it says when to try again
│   ├── ShutDownError            the engine finishes what it has, or has stopped
│   ├── StepError                a step that the request took part in failed
│   ├── StalledError             nothing was computed for the request for too long
│   ├── ReplicaLostError         the replica that computed the answer is gone
│   └── DeadlineError            the answer took longer than the server allows
└── CapacityError                the work does not fit the memory or the blocks there are
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors; its text says what was given, what was expected and what to do.

    Args:
        given: what the caller passed or what was found, in words that name it.
        expected: what would have been right.
        remedy: what to do now, as an imperative sentence without a full stop.
    """

    def __init__(self, given: str, expected: str, remedy: str) -> None:
        super().__init__(f"{given}; expected {expected}. {remedy}.")
        self.given = given
        self.expected = expected
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[PacelineError], tuple[str, str, str]]:
        """Pickle by the three parts, so that an error survives a process border whole."""
        return type(self), (self.given, self.expected, self.remedy)


class ConfigError(PacelineError):
    """A flag, key or environment variable is wrong."""


class ModelError(PacelineError):
    """A model's files cannot be used."""


class ModelNotFoundError(ModelError):
    """No such preset, file or folder."""


class ModelFileError(ModelError):
    """The file is damaged: truncated, wrong magic, or inconsistent with itself."""


class UnsupportedModelError(ModelError):
    """The file is sound, but its architecture or tensor type is not supported."""


class MissingTensorError(ModelError):
    """A tensor that the architecture needs is not in the file."""


class ChatTemplateError(ModelError):
    """The model has no chat template, or its template refused the messages."""


class VocabularyMismatchError(ModelError):
    """The draft model's vocabulary is not the target's."""


class DownloadError(PacelineError):
    """A file could not be fetched from any of its sources."""


class HashMismatchError(DownloadError):
    """The fetched bytes are not the pinned ones."""


class RequestError(PacelineError):
    """One request is wrong; others go on."""


class InvalidParameterError(RequestError):
    """A request parameter is unknown, of the wrong type or out of range."""


class EmptyPromptError(RequestError):
    """The prompt has no tokens."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for output in the context."""


class InputFileError(RequestError):
    """A line of a request file cannot be read as a request."""


class UnknownModelError(RequestError):
    """No model of that name is served here."""


class UnknownRouteError(RequestError):
    """No route has that name."""


class BodyTooLargeError(RequestError):
    """The body of an HTTP request is larger than the server takes."""


class GenerationError(RequestError):
    """No next token can be chosen for this sequence: its logits are NaN, or every token is banned."""


class AccessError(PacelineError):
    """Who asks may not."""


class AuthenticationError(AccessError):
    """No key came with the request, or none that is known."""


class ForbiddenError(AccessError):
    """A known caller, or one from another place, that may not do this."""


class ServingError(PacelineError):
    """A sound request was not taken, or not finished: the engine's state, not the request, is the reason."""


class BusyError(ServingError):
    """The queue is full.

    Args:
        given, expected, remedy: as for every error.
        retry_after_s: seconds after which a place is likely to be free, an estimate; none if there is none.
    """

    def __init__(self, given: str, expected: str, remedy: str, retry_after_s: float | None = None) -> None:
        super().__init__(given, expected, remedy)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[BusyError], tuple[str, str, str, float | None]]:  # type: ignore[override]
        """Pickle with the time to wait."""
        return type(self), (self.given, self.expected, self.remedy, self.retry_after_s)


class ShutDownError(ServingError):
    """The engine takes no more requests: it finishes what it has, or has stopped."""


class StepError(ServingError):
    """A step that the request took part in failed; its cause is attached."""


class StalledError(ServingError):
    """Nothing was computed for the request for too long."""


class ReplicaLostError(ServingError):
    """The replica that computed the answer is gone, and what it had computed with it."""


class DeadlineError(ServingError):
    """The answer took longer than the server allows."""


class CapacityError(PacelineError):
    """The work does not fit the memory or the KV blocks there are."""
