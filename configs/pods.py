"""The experiments that are planned for slices of TPU pods. `make pods` plans them all; BENCHMARKS.md has the table."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Pod:
    """The slice of a pod for which an experiment is planned.

    Attributes:
      slice: chips of a generation in a torus, "v4:8x16x16".
      published: published figures of real runs, and where they stand. "Derived" is our arithmetic from what stands there, "from
        memory" that the source was not at hand.
      options: a set of compiler options (trainers/runtime/chips.py).
    """

    slice: str
    published: str
    options: str = "overlapped"


PODS = {
    "bert.mlperf_480b": Pod(
        "v4:8x16x16",
        "22.74 s on 2048 v4 (MLPerf 1.1 logs), 47.5 % MFU derived; 63 % printed, recomputation counted",
        "scatter_windowed",
    ),
    "bert.mlperf_200b": Pod(
        "v4:8x8x16", "16.83 s on 1024 v4 (MLPerf 1.1 logs), 53.1 % MFU derived; 63 % printed, recomputation counted"
    ),
    "gpt.gspmd_64b": Pod(
        "v4:4x4x8", "62.7 % of v3's peak on 128 cores (GSPMD, Table 2, from memory; recomputation probably counted)"
    ),
    "gpt.gspmd_128b": Pod("v4:4x8x8", "56.5 % of v3's peak on 2048 cores (likewise)"),
    "gpt.gspmd_256b": Pod("v4:4x8x16", "54.1 % of v3's peak on 2048 cores (likewise)"),
    "gpt.gspmd_512b": Pod("v4:4x16x16", "47.5 % of v3's peak on 2048 cores (likewise)"),
    "gpt.gspmd_1t": Pod("v4:8x16x16", "55.6 % of v3's peak on 2048 cores (likewise)", "scatter_windowed"),
    "gpt.gspmd_1t_pipelined": Pod("v4:8x16x16", "none for v4"),
    "gpt.megatron_18_4b": Pod("v4:4x8x8", "43 % of A100's peak on 256 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_39_1b": Pod("v4:8x8x8", "44 % of A100's peak on 512 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_39_1b_pipelined": Pod("v5p:8x8x8", "44 % of A100's peak on 512 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_76_1b": Pod("v4:8x8x16", "45 % of A100's peak on 1024 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_76_1b_pipelined": Pod("v5p:8x8x16", "45 % of A100's peak on 1024 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_145_6b": Pod("v4:8x12x16", "47 % of A100's peak on 1536 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_145_6b_pipelined": Pod("v5p:8x12x16", "47 % of A100's peak on 1536 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_310_1b": Pod("v4:8x16x16", "50 % of A100's peak on 1920 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_310_1b_pipelined": Pod("v5p:8x16x16", "50 % of A100's peak on 1920 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_529_6b": Pod("v4:8x16x16", "52 % of A100's peak on 2520 GPUs (PTD-P, Table 1)"),
    "gpt.megatron_1008b": Pod("v4:8x16x16", "52 % of A100's peak on 3072 GPUs, pipelined (PTD-P, Table 1)"),
    "gpt.megatron_1008b_pipelined": Pod("v4:8x16x16", "52 % of A100's peak on 3072 GPUs (PTD-P, Table 1)"),
    "gpt.palm_540b": Pod("v4:12x16x16", "46.2 % MFU, 57.8 % HFU on 6144 v4 (PaLM, section 4.1, from memory)"),
    "gpt.palm_62b": Pod("v4:8x8x8", "none as throughput"),
    "gpt.gpt3_13b": Pod("v4:4x8x8", "none as throughput"),
    "gpt.gpt3_175b": Pod("v4:8x16x16", "none as throughput"),
    "gpt.lingvo_175b": Pod("v4:8x16x16", "44 % MFU on 2048 v3 cores, derived (Lingvo's tokens/s)"),
    "gpt.mlperf_175b": Pod("v4:8x16x16", "none for v4"),
    "gpt.llama2_70b": Pod("v4:8x8x8", "none for TPUs"),
    "gpt.llama3_70b": Pod("v4:8x8x8", "none for TPUs"),
    "gpt.phi4": Pod("v4:4x4x8", "none for TPUs"),
    "gpt.maxtext_22b": Pod("v4:4x4x4", "56.7 % MFU on 64 v4 (MaxText, 2023)"),
    "gpt.maxtext_52b": Pod("v4:4x4x12", "56.0 % MFU on 192 v4 (MaxText, 2023)"),
    "gpt.mixtral_8x7b": Pod("v4:4x4x8", "none as throughput"),
    "gpt.qwen3_30b_a3b": Pod("v4:4x4x8", "none as throughput"),
    "gpt.olmoe_1b_7b": Pod("v4:4x4x4", "none as throughput"),
    "gpt.gpt_oss_20b": Pod("v4:4x4x8", "none as throughput"),
    "gpt.deepseek_v3": Pod("v4:8x8x16", "none for TPUs"),
    "gpt.glam_64b_64e": Pod("v4:8x8x8", "none as throughput; 456 MWh on 1024 v4 for 600e9 tokens (GLaM, Table 1, from memory)"),
    "gpt.glam_8b_64e": Pod("v4:4x8x8", "none as throughput"),
    "mlperf.gpt_oss_20b": Pod("v5p:2x2x4", "none for TPUs"),
    "mlperf.deepseekv3_671b": Pod("v5p:8x8x16", "none for TPUs"),
    "mlperf.llama2_70b_lora": Pod("v5p:2x2x2", "none for TPUs"),
    "dlrm.dcnv2": Pod("v5p:4x4x4", "none for TPUs as a step"),
    "hstu.dlrmv4": Pod("v5p:4x4x4", "none for TPUs"),
    "gshard_m4.moe_128e_12l": Pod("v4:4x4x8", "2.16 steps/s on 128 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_512e_12l": Pod("v4:8x8x8", "3.28 steps/s on 512 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_2048e_12l": Pod("v4:8x16x16", "2.15 steps/s on 2048 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_128e_36l": Pod("v4:4x4x8", "0.67 steps/s on 128 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_512e_36l": Pod("v4:8x8x8", "1.05 steps/s on 512 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_2048e_36l": Pod("v4:8x16x16", "0.72 steps/s on 2048 v3 cores (GShard, Table 3)"),
    "gshard_m4.moe_2048e_60l": Pod("v4:8x16x16", "not reported (GShard, section 4)"),
    "lamda.lamda_137b": Pod(
        "v4:4x8x8", "56.5 % of 1024 v3 chips' peak (LaMDA, section 10; whether recomputation counts is not known)"
    ),
    "t5.v1_0_11b": Pod("v4:4x8x8", "none as throughput"),
    "t5.mt5_xxl": Pod("v4:4x8x8", "none as throughput"),
    "t5.v1_1_xxl": Pod("v4:4x4x8", "17.6 % of A100's peak on 512 GPUs, derived (T5X, contrib/gpu)", "scatter_windowed"),
    "switch.base_256e": Pod("v4:4x4x8", "none as throughput"),
    "switch.large_128e": Pod("v4:4x4x8", "none as throughput"),
    "switch.xxl_128e": Pod("v4:4x8x8", "none as throughput"),
    "switch.c_2048e": Pod("v4:8x8x16", "none as throughput"),
    "vit.vit_22b": Pod("v4:8x8x16", "54.9 % MFU on 1024 v4 (ViT-22B, section 4, from memory)"),
    "vit.moe_15b": Pod("v4:4x8x8", "none as throughput (V-MoE)"),
    "metnet2.paper": Pod("v4:4x4x8", "none"),
    "multimodal.pod": Pod("v4:8x16x16", "none"),
    "conformer.g": Pod("v4:8x8x8", "none as throughput (BigSSL)"),
    "clip.l14": Pod("v4:4x4x8", "none as throughput"),
    "whisper.large_v3": Pod("v4:4x4x4", "none as throughput"),
    "nllb.moe_54b": Pod("v4:4x4x8", "none as throughput"),
}
