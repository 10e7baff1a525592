"""Products of activations with cache entries, with an fp32 result on every device."""

import torch


def operand_dtype(activations: torch.dtype, precision: str, device: torch.device) -> torch.dtype:
    """What entries are dequantised to: bf16 on CUDA unless something is wider, fp32 on a CPU."""
    if device.type == "cuda" and precision != "fp32" and activations != torch.float32:
        return torch.bfloat16
    return torch.float32


def bmm_fp32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched product of two bf16 (CUDA) or fp32 tensors: fp32, not rounded to the operands' dtype."""
    if a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b)
