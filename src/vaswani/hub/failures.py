"""Describe failures of the Hub, or of the connection to it, in one line with the remedy."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from vaswani.errors import causes, describe_cache_failure, one_line

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# ValueError: invalid names or metadata. RuntimeError: a failed upload of a large file.
HUB_ERRORS = (HfHubHTTPError, LocalEntryNotFoundError, OSError, HTTPError, ValueError, RuntimeError)


def describe_hub_failure(error: BaseException, repo_id: str, revision: str | None = None) -> str:
    """Describe why a model could not be pushed to, or downloaded from, a repository."""
    for cache in (constants.HF_HUB_CACHE, constants.HF_HOME):
        if message := describe_cache_failure(error, Path(cache), "HF_HOME"):
            return message
    for link in causes(error):
        if isinstance(link, RevisionNotFoundError):
            return f"{repo_id} has no revision {revision or 'main'!r}; check its branches and commits"
        if isinstance(link, HfHubHTTPError) and link.response is not None:
            return _describe_status(link, repo_id)
        if isinstance(link, LocalTokenNotFoundError):
            return f"{repo_id} needs a token, and none is set: {LOG_IN}"
        if isinstance(link, HFValidationError):
            return f"{repo_id!r} is not a repository name ({one_line(link)}); expected owner/name or name"
        if isinstance(link, OfflineModeIsEnabled):
            return f"{repo_id} is not in the cache, and HF_HUB_OFFLINE forbids the network: unset it"
        if isinstance(link, HTTPError | ConnectionError):
            return f"{_describe_loss(error)}: check the network and run the same command again"
    return one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"


def is_connection_lost(error: BaseException) -> bool:
    """Return whether the Hub did not answer at all."""
    return any(
        isinstance(link, HTTPError | ConnectionError)
        and not isinstance(link, HfHubHTTPError | OfflineModeIsEnabled)
        for link in causes(error)
    )


def _describe_loss(error: BaseException) -> str:
    links = [type(link).__name__ for link in causes(error) if isinstance(link, HTTPError | ConnectionError)]
    if any(name.endswith("Timeout") for name in links):
        return f"{constants.ENDPOINT} did not answer in time ({links[-1]})"
    return f"the connection to {constants.ENDPOINT} failed ({links[0]})"


def _describe_status(error: HfHubHTTPError, repo_id: str) -> str:
    status = error.response.status_code
    had_token = "authorization" in error.response.request.headers
    if status == 401 or (status == 404 and not had_token):
        if not had_token:
            return f"{repo_id} does not exist, or is private and needs a token: check the name, or {LOG_IN}"
        return f"the Hub does not accept the token (401): make a new one, then {LOG_IN}"
    known = {
        403: f"the token cannot write to {repo_id} (403): use one with write access, or a name of your own",
        404: f"{repo_id} does not exist, or the token cannot read it (404): check the name",
        409: f"the name {repo_id} is taken (409): choose another",
        412: f"{repo_id} has changed in the meantime (412): run the same command again",
        413: f"a file is too large for {repo_id} (413): save the model in smaller shards",
        429: "too many requests to the Hub (429): run the same command again later",
    }
    if status in known:
        return known[status]
    said = one_line(error)
    if status >= 500 or status == 408:
        return f"the Hub answered {status} for {repo_id} ({said}); try again later"
    return f"the Hub refused the request for {repo_id} ({status}): {said}"
