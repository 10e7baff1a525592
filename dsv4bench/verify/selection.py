"""What a top-k selected, held against the logits that it selected by: rows are sets, and near ties may swap."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Selection:
    """What a top-k selected, judged by the logits; rows are tokens.

    Attributes:
        lens: candidates of each row, int64 [T].
        complete: whether a row has all the indices due, each once, and then −1, bool [T].
        left_out: logits of the candidates that were not selected, −∞ elsewhere, [T, N].
        taken: logits of those that were, +∞ elsewhere, [T, N].
        beaten: by how much the best that was left out beats the worst that was taken, relative to the row's largest
            |logit|; 0 where it doesn't. [T]
    """

    lens: torch.Tensor
    complete: torch.Tensor
    left_out: torch.Tensor
    taken: torch.Tensor
    beaten: torch.Tensor


def judge_selection(chosen: torch.Tensor, logits: torch.Tensor, candidate_lens: torch.Tensor) -> Selection:
    """Hold indices int64 [T, k] against the logits [T, N] that they were selected by."""
    lens = candidate_lens.clamp_max(logits.shape[1]).long()
    due = torch.arange(chosen.shape[1], device=chosen.device) < lens[:, None]
    in_range = (chosen >= 0) & (chosen < lens[:, None])
    width = int(lens.max()) if len(lens) else 0
    hits = torch.zeros((len(chosen), width + 1), dtype=torch.long, device=chosen.device)
    hits.scatter_add_(1, torch.where(in_range, chosen, width), in_range.long())
    hits = hits[:, :width]
    complete = (in_range == due).all(1) & (hits <= 1).all(1) & torch.where(due, True, chosen == -1).all(1)
    seen = torch.arange(width, device=chosen.device) < lens[:, None]
    score = torch.where(seen, logits[:, :width], 0.0)
    taken = torch.where(seen & (hits > 0), score, torch.inf)
    left_out = torch.where(seen & (hits == 0), score, -torch.inf)
    if not width:
        return Selection(lens, complete, left_out, taken, torch.zeros(len(lens), device=chosen.device))
    scale = score.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny)
    beaten = ((left_out.amax(1) - taken.amin(1)) / scale).nan_to_num(0.0, posinf=0.0, neginf=0.0).clamp_min(0)
    return Selection(lens, complete, left_out, taken, beaten)
