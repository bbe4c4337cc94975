"""No prepared caches: tests write theirs."""

ENTRIES: dict = {}
