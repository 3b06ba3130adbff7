"""What decoding raises for bytes that are no JSON: malformed, not UTF-8, or nested so deeply that nothing can hold it.

msgspec.DecodeError alone is not enough: text that is not UTF-8 is a UnicodeError, and 100,000 brackets are a RecursionError.
"""

from __future__ import annotations

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
