"""The experiments that are planned for whole TPU-v4 slices, each with what was published about it. `make pods` plans them all."""

PODS = {
    "bert.mlperf_480b": "22.74 s, 47.5 % MFU on 2048 v4 (MLPerf 1.1)",
    "bert.mlperf_200b": "16.83 s, 53.1 % MFU on 1024 v4 (MLPerf 1.1)",
    "gpt.gspmd_64b": "62.7 % of v3's peak on 128 cores, recomputation probably counted (GSPMD, Table 2)",
    "gpt.gspmd_128b": "56.5 % of v3's peak on 2048 cores, recomputation probably counted (GSPMD, Table 2)",
    "gpt.gspmd_256b": "54.1 % of v3's peak on 2048 cores, recomputation probably counted (GSPMD, Table 2)",
    "gpt.gspmd_512b": "47.5 % of v3's peak on 2048 cores, recomputation probably counted (GSPMD, Table 2)",
    "gpt.gspmd_1t": "55.6 % of v3's peak on 2048 cores, recomputation probably counted (GSPMD, Table 2)",
    "gpt.gspmd_1t_pipelined": "none for v4 (GSPMD pipelines a narrower model)",
    "gpt.megatron_1008b": "52 % of A100's peak on 3072 GPUs (PTD-P, Table 1)",
    "gpt.megatron_1008b_pipelined": "52 % of A100's peak on 3072 GPUs (PTD-P, Table 1)",
    "gpt.palm_540b": "46.2 % MFU, 57.8 % HFU on 6144 v4 (PaLM, section 4.1)",
    "gpt.maxtext_22b": "56.7 % MFU on 64 v4 (MaxText, 2023)",
    "gpt.maxtext_52b": "56.0 % MFU on 192 v4 (MaxText, 2023)",
    "gshard_m4.moe_128e_36l": "0.67 steps/s on 128 v3 cores (GShard, Table 1)",
    "gshard_m4.moe_512e_36l": "1.05 steps/s on 512 v3 cores (GShard, Table 1)",
    "gshard_m4.moe_2048e_36l": "0.72 steps/s on 2048 v3 cores (GShard, Table 1)",
    "gshard_m4.moe_2048e_60l": "not reported",
}
