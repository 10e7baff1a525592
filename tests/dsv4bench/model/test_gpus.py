import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.gpus import DEVICES, GPUS, gpu_named, gpu_of_device, parse_gpus


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_plausible_figures_and_a_source(name: str) -> None:
    gpu = GPUS[name]
    assert 2**35 < gpu.memory_bytes < 2**39
    assert 1e11 < gpu.memory_bandwidth < 1e13
    assert gpu.fp8_flops == 0 or gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=1e-3)
    assert gpu.l2_bytes < gpu.memory_bytes
    assert gpu.source


@pytest.mark.parametrize(("text", "name"), [("h200", "H200"), ("rtx pro 6000", "RTX-PRO-6000"), ("Mi355x", "MI355X")])
def test_a_gpu_is_found_in_any_spelling(text: str, name: str) -> None:
    assert gpu_named(text).name == name


def test_a_count_is_read_before_the_name() -> None:
    assert parse_gpus("8xH200") == (8, GPUS["H200"])
    assert parse_gpus("16 x b200") == (16, GPUS["B200"])
    assert parse_gpus("GB10") == (1, GPUS["GB10"])


@pytest.mark.parametrize("text", ["", "0xH200", "00xH200", "-1xH200", "1.5xH200", "8x"])
def test_what_is_no_count_and_name_is_said_to_be_of_the_wrong_form(text: str) -> None:
    with pytest.raises(UserError, match="not of the form 8xH200"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("H2000", "did you mean H200\\? "), ("8xTPU", ""), ("8 x mi30", "did you mean MI300X\\? ")]
)
def test_an_unknown_gpu_is_an_error_that_lists_the_known_ones_and_the_one_meant(text: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"unknown GPU '[A-Za-z0-9]+': {hint}known are A100-80G, H100"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA H20", "H20"),
    ],
)
def test_a_device_name_is_matched_to_its_gpu(device: str, name: str) -> None:
    found = gpu_of_device(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GH200 480GB",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA H100 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA H20-3e",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ],
)
def test_a_card_that_only_looks_like_a_known_one_matches_nothing(device: str) -> None:
    assert gpu_of_device(device) is None


def test_every_known_gpu_has_a_device_name() -> None:
    assert set(DEVICES.values()) == set(GPUS)
