"""The lines in which vLLM and SGLang report their KV capacity, read back into the configuration behind them."""

import re
from dataclasses import dataclass
from pathlib import Path

from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape
from dsv4bench.model.shape import PRESETS, ModelShape

_NUMBER = r"(\d[\d,]*)"
_DECIMAL = r"(\d+(?:\.\d+)?)"
PATTERNS = {
    "version": r"vLLM[^\n]{0,40}?\bv?(\d+\.\d+(?:\.\d+)?)|LLM engine \(v(\d+\.\d+(?:\.\d+)?)",
    "model": r"model(?:_path|_tag)?'?\s*[=:]\s*['\"]?([^'\",\s)]+)",
    "available_gib": rf"Available KV cache memory: {_DECIMAL} GiB",
    "kv_cache_tokens": rf"GPU KV cache size: {_NUMBER} tokens",
    "max_model_len": rf"Maximum concurrency for {_NUMBER} tokens per request",
    "concurrency": rf"Maximum concurrency for [\d,]+ tokens per request: {_DECIMAL}x",
    "num_blocks": rf"(?:num_gpu_blocks(?: is)?|# GPU blocks)\s*[:=]\s*{_NUMBER}",
    "batched_tokens": rf"max_num_batched_tokens'?\s*[=:]\s*{_NUMBER}",
    "pp": r"pipeline_parallel_size'?\s*[=:]\s*(\d+)",
    "drafts": r"num_(?:speculative|spec)_tokens['\"]?\s*[=:]\s*(\d+)",
    "sglang_per_token": rf"bytes_per_full_token={_DECIMAL}",
    "sglang_available_gib": rf"available_bytes={_DECIMAL} GB",
    "sglang_fixed_gib": rf"c128_state_fixed={_DECIMAL} GB",
    "sglang_full": r"(?<!per_)full_token=(\d+)",
    "sglang_pools": r"DSV4 pool sizes: ([^\n]*)",
    "sglang_ratio": rf"swa_full_tokens_ratio'?\s*[=:]\s*{_DECIMAL}",
    "sglang_page": r"[^_]page_size'?\s*[=:]\s*(\d+)",
}
"""What is looked for; the first match of each counts."""


@dataclass(frozen=True)
class ServerLog:
    """What a log says.

    Attributes:
        path: the file.
        engine: ``vllm`` or ``sglang``.
        found: matched text by name of `PATTERNS`.
        async_scheduling: whether vLLM schedules asynchronously; None where it does not say.
        flashinfer: whether a FlashInfer sparse backend is named.
        fp4: whether an fp4 indexer cache is named.
    """

    path: Path
    engine: str
    found: dict[str, str]
    async_scheduling: bool | None
    flashinfer: bool
    fp4: bool

    def integer(self, name: str) -> int | None:
        """A matched number, without its thousands separators."""
        return int(self.found[name].replace(",", "")) if name in self.found else None

    def number(self, name: str) -> float | None:
        """A matched decimal."""
        return float(self.found[name]) if name in self.found else None

    @property
    def shape(self) -> ModelShape:
        """The model the log names, matched to a preset.

        Raises:
            UserError: it names none that is known.
        """
        name = self.found.get("model", "")
        plain = name.lower().replace("_", "-")
        for preset, keys in (("v4-flash", ("v4-flash",)), ("v4-pro", ("v4-pro",)), ("v3.2", ("v3.2", "v32"))):
            if any(key in plain for key in keys):
                return PRESETS[preset]
        if name and Path(name).exists():
            return load_shape(name)
        what = f"names the model {name!r}" if name else "names no model"
        raise UserError(f"{self.path}: the log {what}; known are {', '.join(PRESETS)}: give --model as well")


def read_log(path: Path) -> ServerLog:
    """Find the capacity lines of a server's log.

    Raises:
        UserError: not readable, or without any capacity line of vLLM or SGLang.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--from-log: {path} cannot be read ({error.strerror})") from error
    found = {}
    for name, pattern in PATTERNS.items():
        if match := re.search(pattern, text):
            found[name] = next(group for group in match.groups() if group is not None)
    if "sglang_per_token" in found:
        engine = "sglang"
    elif "kv_cache_tokens" in found or "available_gib" in found:
        engine = "vllm"
    else:
        raise UserError(
            f"{path}: no capacity line found; looked for vLLM's 'GPU KV cache size' and 'Available KV cache memory', "
            "and SGLang's 'bytes_per_full_token'"
        )
    return ServerLog(
        path=path,
        engine=engine,
        found=found,
        async_scheduling=_async_scheduling(text),
        flashinfer=bool(re.search(r"FLASHINFER\w*SPARSE|FlashInfer\w* sparse", text)),
        fp4=bool(re.search(r"(mx)?fp4 indexer", text, re.IGNORECASE)),
    )


def _async_scheduling(text: str) -> bool | None:
    said = re.search(r"[Aa]sync(?:hronous)? scheduling is (enabled|disabled)", text)
    given = re.search(r"async_scheduling'?\s*[=:]\s*(True|False)", text)
    word = said or given
    return word[1] in ("enabled", "True") if word else None
