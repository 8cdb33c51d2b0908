"""The known name that is spelt most like an unknown one."""

import difflib
from collections.abc import Iterable

IN_PAPERS = {"central": "server", "distributed": "devices"}
"""Words of the literature, and the words here for the same: no spelling suggests them."""


def nearest_first(word: str, known: Iterable[str]) -> list[str]:
    """Returns the `known` words, with those spelt most like `word` first and the others in their
    order."""
    # difflib caches its analysis of `b`, so the known words take turns as `a`.
    compared = difflib.SequenceMatcher(b=word)

    def likeness(each: str) -> float:
        compared.set_seq1(each)
        return compared.ratio()

    return sorted(known, key=likeness, reverse=True)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Returns the remedy for an unknown word: a question for the known one that it misspells.

    Args:
        word: word as it was given.
        known: words that are known.
        otherwise: remedy if no known word is similar.
    """
    names = list(known)
    same = IN_PAPERS.get(word, "")
    close = [same] if same in names else difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise
