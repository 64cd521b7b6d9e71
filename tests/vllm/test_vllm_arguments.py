"""vLLM's documented names, each with its fate: honoured, without meaning here, or refused. A name that vLLM adds is
added to the lists here and has to find its place; one that is in a table twice, or in none, fails.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from specgguf.errors import ConfigError, Unsupported
from specgguf.vllm import LLM, SamplingParams
from specgguf.vllm import speculation as speculative
from specgguf.vllm.arguments import HONOURED, REFUSED, WITHOUT_MEANING, names, sort_out
from specgguf.vllm.sampling import REFUSED as REFUSED_SAMPLING
from specgguf.vllm.speculation import Speculation, speculation

# LLM(...) of vLLM 0.16: its own parameters, then those of EngineArgs that it passes on, then those of older versions
# that programs still name.
OF_LLM = """
model runner convert tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code allowed_local_media_path
allowed_media_domains tensor_parallel_size dtype quantization revision tokenizer_revision seed gpu_memory_utilization
swap_space cpu_offload_gb enforce_eager enable_return_routed_experts disable_custom_all_reduce hf_token hf_overrides
mm_processor_kwargs pooler_config structured_outputs_config profiler_config attention_config kv_cache_memory_bytes
compilation_config logits_processors
""".split()
OF_ENGINE = """
model_weights served_model_name hf_config_path enable_prompt_embeds download_dir safetensors_load_strategy load_format
config_format kv_cache_dtype max_model_len cudagraph_capture_sizes max_cudagraph_capture_size
distributed_executor_backend pipeline_parallel_size master_addr master_port nnodes node_rank
prefill_context_parallel_size decode_context_parallel_size dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_backend enable_expert_parallel
all2all_backend enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold
disable_nccl_for_dp_synchronization eplb_config enable_eplb expert_placement_strategy max_parallel_loading_workers
block_size enable_prefix_caching prefix_caching_hash_algo disable_sliding_window disable_cascade_attn
max_num_batched_tokens max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold max_num_seqs
max_logprobs logprobs_mode disable_log_stats aggregate_engine_logging code_revision allow_deprecated_quantization
limit_mm_per_prompt enable_mm_embeds interleave_mm_strings media_io_kwargs mm_processor_cache_gb
mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend
io_processor_plugin skip_mm_profiling video_pruning_rate enable_lora max_loras max_lora_rank default_mm_loras
fully_sharded_loras max_cpu_loras lora_dtype enable_tower_connector_lora specialize_active_lora ray_workers_use_nsight
num_gpu_blocks_override model_loader_extra_config ignore_patterns enable_chunked_prefill disable_chunked_mm_input
disable_hybrid_kv_cache_manager reasoning_parser reasoning_parser_plugin logits_processor_pattern speculative_config
show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces kv_cache_metrics kv_cache_metrics_sample
cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details
enable_mm_processor_stats scheduling_policy scheduler_cls worker_cls worker_extension_cls kv_transfer_config
kv_events_config ec_transfer_config generation_config enable_sleep_mode override_generation_config model_impl
override_attention_dtype attention_backend calculate_kv_scales mamba_cache_dtype mamba_ssm_cache_dtype mamba_block_size
mamba_cache_mode additional_config use_tqdm_on_load pt_load_map_location async_scheduling stream_interval
kv_sharing_fast_prefill optimization_level kv_offloading_size kv_offloading_backend tokens_only
weight_transfer_config
""".split()
OF_OLDER_VERSIONS = """
task max_seq_len_to_capture disable_async_output_proc override_pooler_config speculative_model num_speculative_tokens
use_v2_block_manager num_scheduler_steps scheduler_delay_factor guided_decoding_backend disable_log_requests device
""".split()

OF_SAMPLING = """
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start
logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
include_stop_str_in_output output_kind stream_interval skip_clone structured_outputs logit_bias allowed_token_ids
extra_args bad_words skip_reading_prefix_cache thinking_token_budget repetition_detection
routed_experts_prompt_start trace_decode_token_ids best_of use_beam_search logits_processors truncate_prompt_tokens
guided_decoding
""".split()
# Taken, whatever they say: nothing is streamed, everything is copied, prefixes are shared by themselves, and an answer
# has no special tokens between which a space could stand, nor experts that somebody reads.
SAMPLING_WITHOUT_MEANING = """
output_kind stream_interval skip_clone skip_reading_prefix_cache spaces_between_special_tokens
routed_experts_prompt_start
""".split()
HONOURED_SAMPLING = """
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
ignore_eos max_tokens min_tokens logprobs detokenize include_stop_str_in_output structured_outputs logit_bias
guided_decoding
""".split()
REFUSED_UNLESS_DEFAULT = ["skip_special_tokens"]

OF_SPECULATIVE_CONFIG = """
num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization moe_backend
attention_backend max_model_len revision code_revision enforce_eager disable_by_batch_size
disable_padded_drafter_batch use_local_argmax_reduction prompt_lookup_max prompt_lookup_min speculative_token_tree
parallel_drafting draft_load_config rejection_sample_method synthetic_acceptance_rate
suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_min_token_prob disable_logprobs posterior_threshold posterior_alpha
""".split()

OF_GENERATE = "prompts sampling_params use_tqdm lora_request priority tokenization_kwargs".split()
OF_CHAT = """
messages sampling_params use_tqdm lora_request chat_template chat_template_content_format add_generation_prompt
continue_final_message tools chat_template_kwargs tokenization_kwargs mm_processor_kwargs
""".split()

DOC = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"


def fates(name: str) -> list[str]:
    tables = {"honoured": set(HONOURED), "without meaning": set(names(WITHOUT_MEANING)), "refused": set(names(REFUSED))}
    return [fate for fate, table in tables.items() if name in table]


@pytest.mark.parametrize("name", OF_LLM + OF_ENGINE + OF_OLDER_VERSIONS)
def test_every_argument_of_an_engine_has_one_fate(name: str) -> None:
    assert len(fates(name)) == 1, fates(name)


def test_no_list_names_anything_twice() -> None:
    for table in (WITHOUT_MEANING, REFUSED):
        words = " ".join(table.values()).split()
        assert len(words) == len(set(words))
    everything = OF_LLM + OF_ENGINE + OF_OLDER_VERSIONS
    assert len(everything) == len(set(everything))


def test_what_is_honoured_is_in_the_signature_and_in_the_page() -> None:
    parameters = [p for p in inspect.signature(LLM.__init__).parameters if p not in ("self", "others")]
    assert set(parameters) == set(HONOURED)
    page = DOC.read_text(encoding="utf-8")
    for name in HONOURED:
        assert re.search(rf"\b{name}\b", page), name


@pytest.mark.parametrize("name", names(REFUSED))
def test_what_is_refused_is_refused_by_name_with_a_reason(name: str) -> None:
    with pytest.raises(Unsupported, match=f"^{name}='x' is not supported: ") as refused:
        sort_out({name: "x"})
    assert "\n" not in str(refused.value)
    for off in (None, False, "auto"):
        assert sort_out({name: off}) == ({}, [])


@pytest.mark.parametrize("name", names(WITHOUT_MEANING))
def test_what_has_no_meaning_is_said(name: str) -> None:
    ours, remarks = sort_out({name: "x"})
    assert not ours
    assert remarks[0].startswith(f"{name} has no effect: ")


def test_what_is_nobodys_is_passed_on() -> None:
    assert sort_out({"n_threads": 2}) == ({"n_threads": 2}, [])


def test_every_field_of_sampling_has_one_fate() -> None:
    assert {f.name for f in fields(SamplingParams)} == set(OF_SAMPLING)
    fated = [*HONOURED_SAMPLING, *SAMPLING_WITHOUT_MEANING, *REFUSED_SAMPLING, *REFUSED_UNLESS_DEFAULT]
    assert sorted(fated) == sorted(OF_SAMPLING)


def test_every_key_of_speculation_has_one_fate() -> None:
    fated = [*speculative.HONOURED, *speculative.WITHOUT_MEANING, *speculative.REFUSED]
    assert sorted(fated) == sorted(OF_SPECULATIVE_CONFIG)


def test_the_calls_have_vllms_parameters() -> None:
    assert [p for p in inspect.signature(LLM.generate).parameters if p != "self"] == OF_GENERATE
    assert [p for p in inspect.signature(LLM.chat).parameters if p != "self"] == OF_CHAT


# --- speculation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "n_tokens", "config", "found"),
    [
        (None, None, None, Speculation()),
        ("d.gguf", 5, None, Speculation("d.gguf", 5)),
        ("[ngram]", 3, None, Speculation("ngram", 3)),
        (None, None, {"model": "d.gguf", "num_speculative_tokens": 4}, Speculation("d.gguf", 4)),
        (None, None, {"model": "d.gguf", "method": "draft_model"}, Speculation("d.gguf")),
        (None, None, {"method": "ngram", "num_speculative_tokens": 2}, Speculation("ngram", 2)),
        (None, None, {"model": "d.gguf", "draft_tensor_parallel_size": 2}, Speculation("d.gguf", None, 2)),
        (None, None, {"method": "mtp", "num_speculative_tokens": 2}, Speculation("heads", 2)),
        (None, None, {"method": "deepseek_mtp"}, Speculation("heads")),
        (None, None, {"method": "qwen3_next_mtp", "model": None}, Speculation("heads")),
    ],
)
def test_a_draft_is_named_in_two_forms(
    model: str, n_tokens: int, config: dict[str, object], found: Speculation
) -> None:
    assert speculation(model, n_tokens, config) == found


def test_what_has_no_meaning_for_a_draft_is_said() -> None:
    found = speculation(None, None, {"method": "ngram", "prompt_lookup_max": 4})
    assert found.remarks == (
        "speculative_config: prompt_lookup_max has no effect: the longest n-gram that matches is taken",
    )


@pytest.mark.parametrize(
    ("model", "n_tokens", "config", "said"),
    [
        (None, 5, None, "num_speculative_tokens needs a draft"),
        ("d.gguf", 17, None, "num_speculative_tokens must be a whole number from 1 to 16, not 17"),
        ("d.gguf", None, {"model": "d.gguf"}, "speculative_config says all of it"),
        (None, None, {}, "speculative_config names no draft"),
        (None, None, {"model": "d.gguf", "num_spec_tokens": 3}, "unknown key 'num_spec_tokens'"),
    ],
)
def test_what_names_no_draft_is_refused(model: str, n_tokens: int, config: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        speculation(model, n_tokens, config)


def test_the_models_own_heads_are_no_file() -> None:
    assert speculation(None, None, {"method": "mtp"}).file is None


@pytest.mark.parametrize(("name", "value"), [("model", "d.gguf"), ("draft_tensor_parallel_size", 2)])
def test_the_models_own_heads_are_in_the_model(name: str, value: object) -> None:
    with pytest.raises(Unsupported, match=f"{name} is not supported with method='mtp'") as caught:
        speculation(None, None, {"method": "mtp", name: value})
    assert caught.value.hint.startswith(f"leave out {name}")


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "suffix", "mlp_speculator", "gemma4_mtp", "ernie_mtp"])
def test_other_methods_are_refused_by_name(method: str) -> None:
    with pytest.raises(Unsupported, match=f"the speculative method '{method}' is not supported"):
        speculation(None, None, {"method": method, "model": "d.gguf"})


@pytest.mark.parametrize("name", speculative.REFUSED)
def test_other_keys_are_refused_by_name(name: str) -> None:
    with pytest.raises(Unsupported, match=f"speculative_config: {name} is not supported"):
        speculation(None, None, {"model": "d.gguf", name: "x"})
