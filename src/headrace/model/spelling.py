"""Suggestions for misspelled names."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The most similar known name, as the end of an error message; empty if there is none."""
    from difflib import get_close_matches  # late: needed only after a mistake

    # Spark ignores case; the message shows the documented spelling.
    spelled = {other.lower(): other for other in known}
    near = get_close_matches(name.lower()[:100], list(spelled), n=1, cutoff=0.75)
    return f" (did you mean {spelled[near[0]]}?)" if near else ""
