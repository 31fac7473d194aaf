"""Draws of a drafter: at which temperature, and from which stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drafters.sampling import RequestRandom

OPTIONS = frozenset({"sample", "temperature"})

# Draft draws come from streams of their own. Verification is keyed by the request's seed, and must not share a uniform.
_STREAMS = 1 << 64


class DraftSampling:
    """Options `sample`, and `temperature`, then required: at which the draft is drawn. A temperature of 0 is the greedy draft.

    Any temperature is lossless, since a draft is verified against the distribution that it was drawn from; the request's own
    accepts most.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self.temperature = _temperature(options)
        self._requests = 0
        self._randoms: dict[int, RequestRandom] = {}

    def uniforms(self, slots: Sequence[int], lengths: Sequence[int]) -> list[list[float]] | None:
        """One per draft and request, [K][R]; a request's stream moves by its own drafts only. Null when the draft is greedy."""
        if self.temperature == 0:
            return None
        width = max(lengths)
        drawn = [self._random(slot).uniforms(n) + [0.0] * (width - n) for slot, n in zip(slots, lengths, strict=True)]
        return [list(column) for column in zip(*drawn, strict=True)]

    def release(self, slot: int) -> None:
        self._randoms.pop(slot, None)

    def _random(self, slot: int) -> RequestRandom:
        if slot not in self._randoms:
            self._randoms[slot] = RequestRandom(_STREAMS + self._requests)
            self._requests += 1
        return self._randoms[slot]


def _temperature(options: Mapping[str, object]) -> float:
    """0 for the greedy draft. Raises ValueError that names the option."""
    sample, temperature = options.get("sample", False), options.get("temperature")
    if not isinstance(sample, bool):
        raise ValueError(f"options.sample: {sample!r} must be true or false")
    if temperature is None and not sample:
        return 0.0
    if not isinstance(temperature, int | float) or isinstance(temperature, bool) or not 0 <= temperature < float("inf"):
        raise ValueError(f"options.temperature: {temperature!r} must be finite and at least 0 to draw the draft")
    return float(temperature) if sample else 0.0
