"""The names of XLA's ranges."""

import time

import pytest

from gpt.trace.xla import name_scope


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("jit(step)/jvp(layer0)/attention/btd,de->bte/dot_general", "layer0.attention"),
        ("jit(step)/transpose(jvp(layer0))/mlp/btd,df->btf/transpose", "layer0.mlp (backward)"),
        ("jit(step)/transpose(jvp(vmap(block_1/attn)))/add", "block_1.attn (backward)"),
        ("jit(step)/jvp(loss)/div", "loss"),
        ("jit(step)/jvp(layer3)/mlp", "layer3.mlp"),
        ("jit(step)/transpose(jvp(loss))/mul;jit(step)/transpose(jvp(mlp))/add", "loss (backward)"),
        ("jit(step)", None),
        ("jit(multiply)/mul", None),
        ("jit(step)/jit(inner)/jvp(Dense_0)/a,b", "Dense_0.a,b"),
    ],
)
def test_work_belongs_to_a_scope(name, scope):
    assert name_scope(f"Thunk:#name={name},hlo_op=loop_add_fusion.3,unique_hlo_op_id=4#") == scope


def test_a_module_is_named_without_the_number_of_its_copy():
    assert name_scope("XlaModule:#hlo_module=jit_train_step,program_id=12#") == "jit_train_step"
    assert name_scope("XlaModule:#hlo_module=gemm_fusion_dot.89#") == "gemm_fusion_dot"


@pytest.mark.parametrize("text", ["", "Thunk:#hlo_op=fusion.3#", "Thunk:#name=a", "XlaModule:", "step 3"])
def test_other_ranges_have_no_scope(text):
    assert name_scope(text) is None


@pytest.mark.parametrize("letter", ["(", ")", "/", ";", "jvp(", ",", "."])
def test_long_names_take_no_time(letter):
    begin = time.monotonic()
    name_scope(f"Thunk:#name={letter * 60_000},hlo_op=")
    name_scope(f"XlaModule:#hlo_module={letter * 60_000}")
    assert time.monotonic() - begin < 2
