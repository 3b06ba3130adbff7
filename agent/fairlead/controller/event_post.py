"""Posts one event to an address: ``python -m fairlead.controller.event_post`` with a ``Post`` as JSON on standard input.

This is a process of its own, so that an address that never answers can be ended with it. It follows no redirect: the body would
go to somebody whom the site has not named. Exit code 0: the address has answered with 2xx. Otherwise one line on standard output
says why not.
"""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request

import msgspec
from msgspec import Struct

from fairlead.model.plain_text import one_line

ANSWER_MAX_BYTES = 4096


class Post(Struct, frozen=True, kw_only=True):
    url: str
    headers: dict[str, str]
    body: str
    seconds: float


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def posted(post: Post) -> str:
    """Return "" if the address has taken it, else why not, in one line."""
    request = urllib.request.Request(post.url, data=post.body.encode(), headers=post.headers, method="POST")  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=post.seconds) as answer:
            answer.read(ANSWER_MAX_BYTES)
            return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except urllib.error.HTTPError as e:
        said = one_line(e.read(ANSWER_MAX_BYTES).decode("utf-8", "replace"), 120)
        e.close()
        return f"HTTP {e.code}" + (f": {said}" if said else "")
    except urllib.error.URLError as e:
        return one_line(str(e.reason), 150)
    except (OSError, http.client.HTTPException, ValueError) as e:
        return one_line(f"{type(e).__name__}: {e}", 150)


def main() -> None:
    why = posted(msgspec.json.decode(sys.stdin.buffer.read(), type=Post))
    if why:
        print(why)  # noqa: T201
    sys.exit(bool(why))


if __name__ == "__main__":
    main()
