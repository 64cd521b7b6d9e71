"""What becomes of each of vLLM's arguments of an engine: honoured, without meaning here, or refused with a reason.

The three tables together are all of vLLM's names; what is in none of them is a keyword of `SpeculativeLlama`, or
nobody's. No file is read here and no device is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specgguf.errors import Unsupported

Json = dict[str, Any]

# name -> what it is here.
HONOURED: Mapping[str, str] = {
    "model": "a GGUF file, or org/repo:quantisation",
    "speculative_model": "the draft: the same, or [ngram]",
    "speculative_config": "the draft, its length and its devices as one mapping",
    "num_speculative_tokens": "draft_max: at most so many, fewer or none where they do not pay",
    "tensor_parallel_size": "GPUs, the weights split by rows",
    "pipeline_parallel_size": "GPUs, the weights split by layers",
    "gpu_memory_utilization": "the share of memory that weights and KV cache may take",
    "max_model_len": "n_ctx",
    "max_num_seqs": "n_parallel",
    "seed": "seed",
    "quantization": "gguf, or None",
    "load_format": "gguf, or auto",
    "kv_cache_dtype": "type_k and type_v",
}

# reason -> names that say nothing here: how vLLM runs itself, and nothing that an answer depends on.
WITHOUT_MEANING: Mapping[str, str] = {
    "the GGUF file says it": """
        tokenizer tokenizer_mode tokenizer_revision hf_config_path config_format dtype model_impl trust_remote_code
        override_attention_dtype allow_deprecated_quantization generation_config served_model_name
        reasoning_parser reasoning_parser_plugin""",
    "llama.cpp has no such step": """
        enforce_eager cudagraph_capture_sizes max_cudagraph_capture_size max_seq_len_to_capture compilation_config
        optimization_level performance_mode attention_config attention_backend disable_cascade_attn
        disable_custom_all_reduce disable_nccl_for_dp_synchronization kernel_config ir_op_priority
        enable_flashinfer_autotune
        safetensors_load_strategy pt_load_map_location model_loader_extra_config ignore_patterns use_tqdm_on_load
        max_parallel_loading_workers worker_cls worker_extension_cls distributed_executor_backend
        ray_workers_use_nsight mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode
        calculate_kv_scales additional_config use_v2_block_manager""",
    "the cache is llama.cpp's, and prefixes are shared by themselves": """
        swap_space block_size num_gpu_blocks_override enable_prefix_caching prefix_caching_hash_algo
        disable_hybrid_kv_cache_manager kv_sharing_fast_prefill disable_sliding_window""",
    "who runs with whom is decided by measured costs": """
        max_num_batched_tokens max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold
        enable_chunked_prefill scheduling_policy scheduler_cls scheduler_delay_factor num_scheduler_steps
        multi_step_stream_outputs preemption_mode async_scheduling stream_interval disable_async_output_proc
        scheduler_reserve_full_isl""",
    "results carry their figures": """
        disable_log_stats disable_log_requests aggregate_engine_logging show_hidden_metrics_for_version
        otlp_traces_endpoint collect_detailed_traces kv_cache_metrics kv_cache_metrics_sample cudagraph_metrics
        enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
        enable_mm_processor_stats profiler_config max_logprobs""",
}  # fmt: skip

# what to do instead -> names that would change an answer, or where it is made.
REFUSED: Mapping[str, str] = {
    "a vocabulary's texts are needed": "skip_tokenizer_init tokens_only",
    "specgguf only generates text": """
        runner convert task pooler_config override_pooler_config enable_prompt_embeds allowed_local_media_path
        allowed_media_domains limit_mm_per_prompt enable_mm_embeds interleave_mm_strings media_io_kwargs
        mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb
        mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend io_processor_plugin skip_mm_profiling
        video_pruning_rate disable_chunked_mm_input language_model_only default_mm_loras
        disable_mm_preprocessor_cache""",
    "lora_path loads one with the target": """
        enable_lora max_loras max_lora_rank fully_sharded_loras max_cpu_loras lora_dtype lora_extra_vocab_size
        enable_tower_connector_lora specialize_active_lora enable_prompt_adapter max_prompt_adapters
        max_prompt_adapter_token lora_target_modules""",
    "one process holds the model; the program may start others": """
        data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local
        data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb
        data_parallel_backend enable_expert_parallel all2all_backend enable_dbo ubatch_size
        dbo_decode_token_threshold dbo_prefill_token_threshold eplb_config enable_eplb expert_placement_strategy
        prefill_context_parallel_size decode_context_parallel_size dcp_kv_cache_interleave_size
        dcp_comm_backend cp_kv_cache_interleave_size master_addr master_port nnodes node_rank enable_ep_weight_filter
        enable_elastic_ep distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind numa_bind_nodes
        numa_bind_cpus kv_transfer_config kv_events_config ec_transfer_config fail_on_environ_validation
        weight_transfer_config""",
    "n_gpu_layers says how many layers are on the GPU": """
        cpu_offload_gb kv_offloading_size kv_offloading_backend offload_backend offload_group_size
        offload_num_in_group offload_prefetch_step offload_params cpu_offload_params moe_backend""",
    "gpu_memory_utilization says how much may be taken": "kv_cache_memory_bytes",
    "name a file": "revision code_revision hf_overrides model_weights",
    "set HF_HUB_CACHE": "download_dir",
    "set HF_TOKEN": "hf_token",
    "log-probabilities are the model's own, before any change": "logprobs_mode",
    "give them as SamplingParams": """
        override_generation_config logits_processors logits_processor_pattern structured_outputs_config
        guided_decoding_backend""",
    "it is vLLM's own": "enable_return_routed_experts enable_sleep_mode shutdown_timeout device",
}  # fmt: skip

# What vLLM itself says for a name that is refused, beside what says "off" anyhow.
DEFAULTS: Mapping[str, Any] = {
    "runner": "generate", "task": "generate", "convert": "none", "data_parallel_size": 1,
    "logprobs_mode": "raw_logprobs", "kv_offloading_backend": "native", "mm_processor_cache_gb": 4,
    "data_parallel_backend": "mp", "nnodes": 1, "prefill_context_parallel_size": 1, "decode_context_parallel_size": 1,
}  # fmt: skip


def names(table: Mapping[str, str]) -> dict[str, str]:
    """Name -> reason of a table that is written the other way round."""
    return {name: reason for reason, line in table.items() for name in line.split()}


def sort_out(given: Mapping[str, Any]) -> tuple[Json, list[str]]:
    """Of arguments that are not honoured: those that are none of vLLM's, and a remark on each that has no meaning here.

    Raises:
        Unsupported: one that would change something, with what to do instead.
    """
    ignored, refused = names(WITHOUT_MEANING), names(REFUSED)
    ours, remarks = {}, []
    for name, value in given.items():
        if name not in ignored and name not in refused:
            ours[name] = value
        elif not _is_off(value) and value != DEFAULTS.get(name):
            if name in refused:
                raise Unsupported(f"{name}={value!r:.60} is not supported: {refused[name]}")
            remarks.append(f"{name} has no effect: {ignored[name]}")
    return ours, remarks


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in (0, "", "auto", [], {})
