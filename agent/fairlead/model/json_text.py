"""Lists the exceptions that decoding raises for bytes that are not JSON: malformed, not UTF-8, or nested too deeply.

msgspec.DecodeError alone is not enough: text that is not UTF-8 raises a UnicodeError, and 100,000 brackets raise a
RecursionError.
"""

from __future__ import annotations

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
