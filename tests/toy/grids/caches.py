"""No prepared caches: tests write theirs."""

CACHES: tuple = ()
ENTRIES: dict = {}
