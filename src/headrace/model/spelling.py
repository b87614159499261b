"""Which name was probably meant."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is near, as the end of a refusal; empty if none is."""
    from difflib import get_close_matches  # late: a start without a mistake has no use for it

    # Names have no case in Spark, but are told as the documents spell them.
    spelled = {other.lower(): other for other in known}
    near = get_close_matches(name.lower()[:100], list(spelled), n=1, cutoff=0.75)
    return f" (did you mean {spelled[near[0]]}?)" if near else ""
