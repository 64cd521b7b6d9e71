"""The terminal program. It prints; the library under it does not."""
