"""Matrix products with an fp32 result: bf16 operands where the device has such a product, fp32 ones elsewhere."""

import torch


def has_mixed_products(device: torch.device) -> bool:
    """Whether bf16 operands can give an fp32 result: on CUDA, not on a CPU."""
    return device.type == "cuda"


def operand_dtype(activations: torch.dtype, precision: str, device: torch.device) -> torch.dtype:
    """What cache entries become: fp32 if anything is wider than bf16 or the device has no mixed products."""
    wide = activations == torch.float32 or precision == "fp32"
    return torch.bfloat16 if has_mixed_products(device) and not wide else torch.float32


def bmm_fp32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batched product of two bf16 (where mixed products exist) or two fp32 tensors, not rounded: fp32."""
    if a.dtype == torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b)
