"""The noise: a pure function of its keys, and exact sampling by it."""

from __future__ import annotations

import torch

from entmtp_calib.engine.noise import gumbel


def test_a_row_depends_on_its_own_keys_alone() -> None:
    seeds, positions = torch.tensor([3, 3, 4, -9]), torch.tensor([0, 7, 7, 2**40])
    together = gumbel(seeds, positions, torch.arange(50))
    for row in range(4):
        assert torch.equal(together[row], gumbel(seeds[row : row + 1], positions[row : row + 1], torch.arange(50))[0])
    assert len({tuple(row.tolist()) for row in together}) == 4
    assert torch.equal(together, gumbel(seeds, positions, torch.arange(80))[:, :50])


def test_the_largest_perturbed_logit_is_a_sample_of_the_softmax() -> None:
    """Chi-square over 40,000 positions; 29.6 is the 0.999 quantile for 10 degrees of freedom."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, 0.5, -2.0, 1.5, -0.5, 0.0, 3.0])
    n = 40_000
    drawn = (logits + gumbel(torch.full((n,), 11), torch.arange(n), torch.arange(len(logits)))).argmax(-1)
    counts = torch.bincount(drawn, minlength=len(logits)).double()
    wanted = n * logits.double().softmax(-1)
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 29.6


def test_neighbouring_seeds_positions_and_tokens_are_uncorrelated() -> None:
    noise = gumbel(torch.full((2000,), 5), torch.arange(2000), torch.arange(20))
    other = gumbel(torch.full((2000,), 6), torch.arange(2000), torch.arange(20))
    for first, second in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:]), (noise, other)):
        assert abs(float(torch.corrcoef(torch.stack((first.flatten(), second.flatten())))[0, 1])) < 0.02
    assert abs(float(noise.mean()) - 0.5772) < 0.02
    assert abs(float(noise.var()) - 1.6449) < 0.05
