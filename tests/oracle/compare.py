"""The measure of agreement: for each tensor, the largest difference against the largest value."""

import torch

# Both sides compute in fp32 (2^-24 = 6e-8 a rounding) and sum some hundred terms in different orders through a few layers.
TOLERANCE = 1e-4


def relative_difference(ours, theirs):
    """max|a - b| / max|b|; infinite when shapes differ or something is not finite."""
    ours, theirs = torch.as_tensor(ours).double(), torch.as_tensor(theirs).detach().double()
    if ours.shape != theirs.shape or not torch.isfinite(ours).all() or not torch.isfinite(theirs).all():
        return float("inf")
    scale = theirs.abs().max().item()
    return (ours - theirs).abs().max().item() / scale if scale > 0 else ours.abs().max().item()


def assert_close(ours, theirs, what, tolerance=TOLERANCE):
    difference = relative_difference(ours, theirs)
    if difference <= tolerance:
        return
    ours, theirs = torch.as_tensor(ours).double(), torch.as_tensor(theirs).detach().double()
    assert ours.shape == theirs.shape, f"{what}: shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}"
    wrong = ~((ours - theirs).abs() <= tolerance * theirs.abs().nan_to_num(0, 0, 0).max())
    index = tuple(wrong.nonzero()[0].tolist())
    raise AssertionError(
        f"{what}: max|a-b| / max|b| is {difference:.3g}, allowed {tolerance:g}; "
        f"first bad index {index}: {ours[index].item():.8g}, expected {theirs[index].item():.8g}"
    )
