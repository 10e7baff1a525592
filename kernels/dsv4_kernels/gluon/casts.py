"""Conversions of the Gluon kernels, as PTX for ``inline_asm_elementwise``."""

import triton.language as tl

PACK_BF16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
PACK_FP16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")
"""Two fp32, the lower first, to a word of two: single conversions run at an eighth of the rate of packed ones."""
DEQUANTISE = tl.constexpr("""
{
.reg .b16 first, second;
.reg .b32 low, high;
mov.b32 {first, second}, $2;
cvt.rn.f16x2.e4m3x2 low, first;
cvt.rn.f16x2.e4m3x2 high, second;
mul.rn.f16x2 $0, low, $3;
mul.rn.f16x2 $1, high, $3;
}
""")
"""Four e4m3 bytes to two words of two fp16 each, times a scale given twice as fp16."""
