"""Kernel names of all makers fall into the right category, and onto the right units."""

from pathlib import Path

import numpy as np
import pytest
from plain import TRACES
from recordings import recorded

from stepscope.analyze.timeline.attribution import (
    CATEGORIES,
    categorise,
    event_categories,
)
from stepscope.analyze.timeline.kernels import on_tensor_cores

COPY_KERNEL = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at)"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x<float>>"


@pytest.mark.parametrize(
    ("name", "operator", "category"),
    [
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_nhwc_tensor16x8x8", "", "convolution"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_nn>", "", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_nn>", "aten::cudnn_convolution",
         "convolution"),
        ("void cudnn::ops::nchwToNhwcKernel<float>", "aten::cudnn_convolution", "layout change"),
        ("batched_transpose_16x32_half", "aten::miopen_convolution", "layout change"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0", "", "convolution"),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight", "",
         "convolution"),
        ("Cijk_Alik_Bljk_BBS_BH_MT32x32x256_MI16x16x1", "", "matmul"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "aten::mm", "matmul"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "aten::mm", "matmul"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4", "", "matmul"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "", "attention"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "", "attention"),
        ("kernel_unified_attention_3d", "", "attention"),
        ("RNN_blockPersist_fp_LSTM<float>", "aten::_cudnn_rnn", "recurrent"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "", "normalisation"),
        ("void at::native::vectorized_layer_norm_kernel<float>", "", "normalisation"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwd", "", "normalisation"),
        ("void at::native::cunn_SoftMaxForward<8>", "aten::_log_softmax", "softmax"),
        ("void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>", "", "loss"),
        ("void at::native::max_pool_forward_nchw<float>", "", "pooling"),
        (FOREACH, "aten::_foreach_add_", "optimizer"),
        (FOREACH, "", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, launch_clamp_scalar::{lambda()#1}>",
         "aten::clamp_min_", "pointwise"),
        ("void at::native::vectorized_elementwise_kernel<8, {lambda()#1}>", "", "pointwise"),
        ("void at::native::reduce_kernel<512, 1, MeanOps<float>>", "aten::mean", "reduction"),
        ("void at::native::indexSelectLargeIndex<float>", "aten::index_select", "embedding/index"),
        ("void at::native::vectorized_gather_kernel<16, long>", "", "embedding/index"),
        ("DeviceRadixSortOnesweepKernel<long>", "aten::sort", "sort/scan"),
        ("void at_cuda_detail::cub::DeviceScanKernel<x>", "", "sort/scan"),
        (COPY_KERNEL, "aten::copy_", "copy"),
        (COPY_KERNEL, "", "copy"),
        ("Memcpy HtoD (Pinned -> Device)", "aten::copy_", "copy"),
        ("Memset (Device)", "aten::convolution_backward", "copy"),
        ("void at::native::distribution_elementwise_grid_stride_kernel<float>", "aten::bernoulli_",
         "random"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "record_param_comms", "communication"),
        ("triton_poi_fused_add_relu_3", "", "pointwise"),
        ("triton_poi_fused__to_copy_1", "", "copy"),
        ("triton_per_fused_native_layer_norm_2", "", "normalisation"),
        ("triton_red_fused__log_softmax_1", "", "softmax"),
        ("triton_red_fused_sum_4", "", "reduction"),
        ("triton_tem_fused_addmm_7", "", "matmul"),
        ("triton_poi_fused_addmm_relu_5", "", "pointwise"),
        ("triton_unheard_of", "", "compiled"),
        ("loop_add_fusion_12", "", "pointwise"),
        ("input_reduce_fusion_3", "", "reduction"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16>", "", "pointwise"),
        ("zzz", "", "other"),
    ],
)  # fmt: skip
def test_category(name: str, operator: str, category: str) -> None:
    assert categorise(name, operator) == category


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda p: p.name[:20])
def test_hardly_any_time_is_of_no_category(path: Path) -> None:
    timeline = recorded(path.name.removesuffix(".json.gz"))
    categories = event_categories(timeline)
    duration = timeline.device.duration
    other = duration[categories == CATEGORIES.index("other")].sum()
    assert other <= 0.03 * duration.sum()
    assert np.all(categories < len(CATEGORIES))


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("ampere_h16816gemm_128x64", "matmul", True),
        ("volta_h884gemm_64x64", "matmul", True),
        ("turing_fp16_s1688gemm_fp16_128x128", "matmul", True),
        ("cutlass_80_tensorop_s1688gemm_64x64", "matmul", True),
        ("nvjet_sm90_tst_256x128", "matmul", True),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1", "matmul",
         True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x128x8_ffma", "matmul", False),
        ("cutlass_80_simt_sgemm_128x32", "matmul", False),
        ("volta_sgemm_128x64_nn", "matmul", False),
        ("cudnn_infer_ampere_scudnn_128x64_relu", "convolution", False),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>", "convolution", False),
        ("void cublasLt::splitKreduce_kernel<32>", "matmul", False),
        ("void flash::flash_fwd_kernel<x>", "attention", True),
        ("Cijk_Ailk_Bljk_BBS_MT64x64x64_MI16x16x16x1_SN", "matmul", True),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", "matmul", False),
        ("igemm_fwd_gtcx3_nhwc_bf16", "convolution", True),
        ("kernel_grouped_conv_fwd_xdl_cshuffle_v3", "convolution", True),
        ("kernel_unified_attention_3d", "attention", None),
        ("triton_tem_fused_mm_1", "matmul", None),
        ("nchwToNhwcKernel_tf32", "layout change", False),
    ],
)  # fmt: skip
def test_tensor_cores(name: str, category: str, expected: bool | None) -> None:
    assert on_tensor_cores(name, category) is expected
