"""A provider of one stage."""

import torch

from dsv4bench.providers.base import Need, Support


class MyTopk:
    """Top-k by sorting."""

    name = "my-topk"

    def supports(self, need: Need) -> Support:
        """Wherever torch runs."""
        return Support(need.device in ("cpu", "cuda"), "my-topk runs on cpu and cuda")

    def topk(self, *, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
        """The k best of each row's candidates, then -1."""
        column = torch.arange(logits.shape[1], device=logits.device)
        hidden = column >= candidate_lens[:, None]
        order = logits.masked_fill(hidden, float("-inf")).argsort(dim=1, descending=True)[:, :k]
        indices = torch.where(order < candidate_lens[:, None], order, -1).int()
        return torch.nn.functional.pad(indices, (0, k - indices.shape[1]), value=-1)
