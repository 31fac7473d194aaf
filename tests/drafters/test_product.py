"""The product of few rows: equal to torch's, the same row by row, and absent without harm."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters import kernels, layers
from drafters.kernels import product_library
from drafters.layers import Linear, best_kind, in_blocks, onednn_packs

compiled = pytest.mark.skipif(kernels._compiler() is None, reason="no C++ compiler here: there is nothing compiled to test")


@pytest.fixture
def uncompiled(monkeypatch):
    """As on a machine where the product cannot be compiled."""
    monkeypatch.setattr(layers, "product_library", lambda: None)


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    """A user who has compiled nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "samerig"


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@compiled
@given(st.integers(0, 40), st.integers(1, 70), st.integers(1, 70), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_product_equals_torchs_at_any_size(rows, inputs, outputs, biased):
    x, weight, bias = numbers(rows, inputs), numbers(outputs, inputs), numbers(outputs) if biased else None
    linear = Linear(weight, bias)
    assert linear.kind == "simd"
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)


@compiled
@given(st.integers(2, 40), st.data())
@settings(max_examples=50, deadline=None)
def test_a_row_comes_out_the_same_bits_alone_or_among_others(rows, data):
    x, linear = numbers(rows, 65), Linear(numbers(100, 65))
    row = data.draw(st.integers(0, rows - 1))
    assert torch.equal(linear(x)[row], linear(x[row : row + 1])[0])


@compiled
def test_a_product_takes_strided_rows_in_any_batch_shape():
    x, weight = numbers(7, 33, 5).transpose(1, 2), numbers(20, 33)
    torch.testing.assert_close(Linear(weight)(x), F.linear(x, weight), atol=1e-4, rtol=1e-5)


@compiled
@pytest.mark.parametrize("wrong", [torch.zeros(2, 32), torch.zeros(2, 33, dtype=torch.bfloat16)])
def test_rows_that_the_library_would_misread_are_refused(wrong):
    with pytest.raises(ValueError, match="takes float32 rows of 33"):
        Linear(numbers(20, 33))(wrong)


def test_blocks_hold_outputs_side_by_side_and_fill_up_with_noughts():
    blocks = in_blocks(torch.arange(6.0).view(3, 2), columns=2)
    assert blocks.tolist() == [[[0, 2], [1, 3]], [[4, 0], [5, 0]]]


@compiled
def test_the_library_is_compiled_once_for_a_machine(fresh_cache):
    first = kernels._compiled(kernels._compiler())
    written = first.stat().st_mtime_ns
    assert kernels._compiled(kernels._compiler()) == first
    assert first.stat().st_mtime_ns == written
    assert [path.name for path in fresh_cache.iterdir()] == [first.name], "a temporary folder stayed"


def test_without_a_compiler_onednn_multiplies_and_the_log_says_so(monkeypatch, caplog, fresh_cache):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        assert product_library.__wrapped__() is None
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_leaves_nothing_behind_and_the_log_says_what_it_said(monkeypatch, caplog, fresh_cache):
    broken = fresh_cache.parent / "broken"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho no such flag >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with caplog.at_level(logging.WARNING):
        assert product_library.__wrapped__() is None
    assert "no such flag" in caplog.text
    assert list(fresh_cache.iterdir()) == []


def test_other_ways_give_the_same_numbers(uncompiled, monkeypatch):
    x, weight, bias = numbers(5, 33), numbers(70, 33), numbers(70)
    packed = Linear(weight, bias)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not onednn_packs(weight)
    plain = Linear(weight, bias)
    assert (plain.kind, plain.packed) == ("torch", False)
    torch.testing.assert_close(packed(x), plain(x), atol=1e-4, rtol=1e-5)


def test_a_bfloat16_weight_never_meets_the_float32_product():
    assert best_kind(torch.zeros(4, 4, dtype=torch.bfloat16)) in ("onednn-packed", "torch")
