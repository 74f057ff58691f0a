"""Who may read the page: holders of the token, on addresses of this machine."""

from __future__ import annotations

import hmac
import re
import secrets
from http.cookies import CookieError, SimpleCookie

# A page of another site whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name.
_HOSTS = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?", re.ASCII)
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: no inline script runs, and no other site reads or frames the page."""


class Access:
    """The token of a page, which the URL carries once and a cookie afterwards.

    Args:
        port: port of the page; pages of one machine share their cookies.
    """

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._cookie = f"torch-edl-dashboard-{port}"

    def is_local(self, host: str | None) -> bool:
        """Return whether the header Host names this machine."""
        return host is not None and _HOSTS.fullmatch(host) is not None

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token, in a time that does not depend on the text."""
        return hmac.compare_digest(text.encode(), self.token.encode())

    def allows(self, cookie: str | None) -> bool:
        """Return whether the header Cookie carries the token."""
        try:
            found = SimpleCookie(cookie or "").get(self._cookie)
        except CookieError:
            return False
        return found is not None and self.is_token(found.value)

    @property
    def set_cookie(self) -> str:
        """Value of the header Set-Cookie."""
        return f"{self._cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
