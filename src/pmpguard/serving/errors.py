"""Errors that carry their HTTP status."""

from __future__ import annotations

from pmpguard.errors import PmpguardError


class RequestError(PmpguardError):
    """A request that is refused: with which status, and when to come back if that helps."""

    def __init__(self, status: int, message: str, *, fix: str = "", retry_after: int | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        super().__init__(message, fix=fix)

    @property
    def headers(self) -> dict[str, str]:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.status in (408, 413):  # the rest of the body is not read
            headers["Connection"] = "close"
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    def as_dict(self) -> dict[str, str]:
        return {"error": self.message, "fix": self.fix}


def busy(message: str = "too many requests are waiting") -> RequestError:
    return RequestError(503, message, fix="try again in a moment", retry_after=1)


def invalid(field: str, what: str, fix: str) -> RequestError:
    return RequestError(422, f"{field}: {what}", fix=fix)
