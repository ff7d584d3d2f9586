"""Each failure of the Hub in one line, with its remedy."""

import errno
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

from vaswani.hub.failures import describe_hub_failure


def answered(status: int, token: bool = True) -> HfHubHTTPError:
    headers = {"authorization": "Bearer hf_ada"} if token else {}
    request = SimpleNamespace(url="http://hub", method="GET", headers=headers)
    response = SimpleNamespace(status_code=status, headers={}, request=request)
    return HfHubHTTPError(f"{status}\nsome page", response=response)


def caused(error: Exception) -> RuntimeError:
    """As the client wraps what happens while a large file is sent."""
    outer = RuntimeError("Error while uploading")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answered(401), "does not accept the token (401): make a new one"),
        (answered(403), "cannot write to ada/toy (403): use one with write access"),
        (answered(404), "ada/toy does not exist, or the token cannot read it (404)"),
        (answered(409), "the name ada/toy is taken (409): choose another"),
        (answered(412), "has changed in the meantime (412): run the same command again"),
        (answered(413), "too large for ada/toy (413): save the model in smaller shards"),
        (answered(429), "too many requests to the Hub (429)"),
        (answered(503), "the Hub answered 503 for ada/toy (503 some page); try again later"),
        (answered(400), "the Hub refused the request for ada/toy (400): 400 some page"),
        (answered(422), "the Hub refused the request for ada/toy (422): 422 some page"),
        (answered(408), "the Hub answered 408 for ada/toy (408 some page); try again later"),
        (
            OSError(errno.ENOSPC, "full"),
            f"no space left on the disk of the cache {constants.HF_HUB_CACHE}: free",
        ),
        (OSError(errno.ENOSPC, "full"), "or set HF_HOME to a folder on another disk"),
        (
            PermissionError(errno.EACCES, "Permission denied", f"{constants.HF_HUB_CACHE}/models--ada--toy"),
            f"cannot write to the cache {constants.HF_HUB_CACHE} (Permission denied): set HF_HOME to a",
        ),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", f"{constants.HF_HOME}/token"),
            f"cannot write to the cache {constants.HF_HOME} (Not a directory): set HF_HOME to a",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", constants.HF_HOME),
            f"cannot write to the cache {constants.HF_HUB_CACHE} (Read-only file system): set HF_HOME",
        ),
        (OSError(errno.EDQUOT, "full"), "no space left"),
        (caused(OSError(errno.ENOSPC, "full")), "no space left"),
        (caused(HTTPError("reset")), "failed (HTTPError): check the network and run the same command again"),
        (ConnectionResetError("reset"), "failed (ConnectionResetError): check the network"),
        (LocalTokenNotFoundError("none"), "ada/toy needs a token, and none is set: log in with"),
        (OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE forbids the network: unset it"),
        (ValueError("Invalid\nmetadata"), "Invalid metadata"),
        (PermissionError(errno.EACCES, "denied"), "PermissionError: [Errno 13] denied"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_says_what_to_do(error: Exception, words: str) -> None:
    message = describe_hub_failure(error, "ada/toy")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("status", [401, 404])
def test_without_a_token_a_private_repository_cannot_be_told_from_none(status: int) -> None:
    message = describe_hub_failure(answered(status, token=False), "ada/toy")
    assert "ada/toy does not exist, or is private and needs a token" in message


@pytest.mark.parametrize("status", range(400, 429))
def test_refused_requests_do_not_suggest_trying_again(status: int) -> None:
    message = describe_hub_failure(answered(status), "ada/toy")
    assert ("try again later" in message) == (status == 408)
    assert str(status) in message
