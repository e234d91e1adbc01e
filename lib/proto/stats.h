#pragma once

/*
 * stats - the statistics of front and worker, one row each:
 *
 *     ROW(TYPE, FIELD, KIND, PER, METRIC, KEY, HELP)
 *
 * A row makes three things: the field of its struct, which the owner increments or sets; the family
 * METRIC of /metrics, whose value is divided by PER (so that times are in seconds), or "" if it is
 * not in /metrics; and the KEY in answers of the admin socket, with the value unchanged. TYPE is
 * uint32_t, uint64_t or double. Names that begin with vllm: are vLLM's, because routers and
 * dashboards look for them.
 *
 * The structs are sent and copied as bytes: both processes are the same executable.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names of the draft sources, in the order of the table in scheduler/spec.c. */
#define MSG_DRAFT_SOURCES 6
extern const char *const msg_draft_source[MSG_DRAFT_SOURCES];

/* Statistics of a worker: counters since it started and current gauges. Prewarmed tokens count only
 * in their own two counters. */
#define WORKER_STATS(ROW)                                                                          \
    ROW(uint64_t, n_steps, COUNTER, 1, "weft_steps_total", "steps", "Steps of the worker.")        \
    ROW(uint64_t, n_prompt_tokens, COUNTER, 1, "weft_prompt_tokens_computed_total",                \
        "prompt_tokens", "Prompt tokens computed, counted at each step.")                          \
    ROW(uint64_t, n_cached_tokens, COUNTER, 1, "", "cached_tokens",                                \
        "Prompt tokens taken from the prefix cache.")                                              \
    ROW(uint64_t, n_output_tokens, COUNTER, 1, "", "output_tokens", "Output tokens.")              \
    ROW(uint32_t, n_running, GAUGE, 1, "", "running", "Requests that hold a batch slot.")          \
    ROW(uint32_t, n_waiting, GAUGE, 1, "", "waiting", "Requests that wait for a batch slot.")      \
    ROW(uint64_t, n_finished, COUNTER, 1, "", "finished", "Requests that ended.")                  \
    ROW(uint64_t, n_cancelled, COUNTER, 1, "", "cancelled", "Requests that were cancelled.")       \
    ROW(uint64_t, n_rejected, COUNTER, 1, "", "rejected", "Requests that can never run.")          \
    ROW(uint64_t, n_preemptions, COUNTER, 1, "vllm:num_preemptions_total", "preemptions",          \
        "Generations preempted.")                                                                  \
    ROW(uint64_t, n_lookup_tokens, COUNTER, 1, "vllm:prefix_cache_queries_total", "lookup_tokens", \
        "Prompt tokens looked up in the prefix cache.")                                            \
    ROW(uint64_t, n_hit_tokens, COUNTER, 1, "vllm:prefix_cache_hits_total", "hit_tokens",          \
        "Prompt tokens found in the prefix cache.")                                                \
    ROW(uint64_t, n_drafts, COUNTER, 1, "vllm:spec_decode_num_drafts_total", "drafts_checked",     \
        "Drafts checked.")                                                                         \
    ROW(uint64_t, n_drafted, COUNTER, 1, "vllm:spec_decode_num_draft_tokens_total", "drafted",     \
        "Drafted tokens.")                                                                         \
    ROW(uint64_t, n_accepted, COUNTER, 1, "vllm:spec_decode_num_accepted_tokens_total",            \
        "accepted", "Drafted tokens that were accepted.")                                          \
    ROW(uint64_t, n_grammar_hits, COUNTER, 1, "weft_grammar_cache_hits_total", "grammar_hits",     \
        "Requests whose grammar was compiled already.")                                            \
    ROW(uint64_t, n_grammars, COUNTER, 1, "weft_grammars_compiled_total", "grammars",              \
        "Grammars compiled.")                                                                      \
    ROW(uint64_t, n_grammars_refused, COUNTER, 1, "weft_grammars_refused_total",                   \
        "grammars_refused", "Grammars that the worker refused.")                                   \
    ROW(uint64_t, compile_ns_total, COUNTER, 1e9, "weft_grammar_compile_seconds_total",            \
        "compile_ns", "Time that compiling took.")                                                 \
    ROW(uint32_t, n_compiling, GAUGE, 1, "weft_grammars_compiling", "grammars_compiling",          \
        "Grammars that requests wait for.")                                                        \
    ROW(uint64_t, grammar_bytes, GAUGE, 1, "weft_grammar_bytes", "grammar_bytes",                  \
        "Memory of compiled grammars.")                                                            \
    ROW(uint64_t, grammar_state_bytes, GAUGE, 1, "weft_grammar_state_bytes",                       \
        "grammar_state_bytes", "Memory of the matchers of requests.")                              \
    ROW(uint64_t, grammar_shared_bytes, GAUGE, 1, "weft_grammar_shared_bytes",                     \
        "grammar_shared_bytes", "Memory of the token classes that grammars share.")                \
    ROW(uint32_t, n_grammar_waiting, GAUGE, 1, "weft_grammar_requests_waiting", "grammar_waiting", \
        "Requests that wait for their tenant's share of the memory of grammars.")                  \
    ROW(uint64_t, n_masks, COUNTER, 1, "weft_masks_total", "masks",                                \
        "Masks of constrained tokens.")                                                            \
    ROW(uint64_t, n_masks_late, COUNTER, 1, "weft_masks_late_total", "masks_late",                 \
        "Masks that took too long for their step and were made by a thread.")                      \
    ROW(uint64_t, mask_ns_total, COUNTER, 1e9, "weft_mask_seconds_total", "mask_ns",               \
        "Time that masks took of the step loop.")                                                  \
    ROW(uint64_t, n_saved_tokens, COUNTER, 1, "weft_host_offloaded_tokens_total",                  \
        "host_offloaded_tokens", "Tokens whose pages were copied to host memory.")                 \
    ROW(uint64_t, n_fetched_tokens, COUNTER, 1, "weft_host_loaded_tokens_total",                   \
        "host_loaded_tokens", "Tokens whose pages were copied back from host memory.")             \
    ROW(uint64_t, n_left_tokens, COUNTER, 1, "weft_host_recomputed_tokens_total",                  \
        "host_recomputed_tokens",                                                                  \
        "Tokens found in host memory but computed again, which was faster.")                       \
    ROW(uint32_t, n_host_pages, GAUGE, 1, "weft_host_pages", "host_pages",                         \
        "Pages that fit in host memory.")                                                          \
    ROW(uint32_t, n_host_used, GAUGE, 1, "weft_host_pages_used", "host_pages_used",                \
        "Pages in host memory.")                                                                   \
    ROW(uint32_t, n_host_held, GAUGE, 1, "", "host_pages_held",                                    \
        "Pages in host memory that requests hold.")                                                \
    ROW(uint64_t, n_disk_saved_tokens, COUNTER, 1, "weft_disk_saved_tokens_total",                 \
        "disk_saved_tokens", "Tokens whose pages were written to the disk.")                       \
    ROW(uint64_t, n_disk_loaded_tokens, COUNTER, 1, "weft_disk_loaded_tokens_total",               \
        "disk_loaded_tokens", "Tokens whose pages were read from the disk.")                       \
    ROW(uint64_t, n_disk_left_tokens, COUNTER, 1, "weft_disk_recomputed_tokens_total",             \
        "disk_recomputed_tokens",                                                                  \
        "Tokens on the disk that were computed again: that was faster, or reading took too long.") \
    ROW(uint64_t, n_disk_bad, COUNTER, 1, "weft_disk_bad_pages_total", "disk_bad_pages",           \
        "Damaged pages and snapshots on the disk.")                                                \
    ROW(uint32_t, n_disk_pages, GAUGE, 1, "weft_disk_pages", "disk_pages",                         \
        "Pages that fit on the disk tier.")                                                        \
    ROW(uint32_t, n_disk_used, GAUGE, 1, "weft_disk_pages_used", "disk_pages_used",                \
        "Pages on the disk tier.")                                                                 \
    ROW(uint32_t, n_disk_snapshots, GAUGE, 1, "weft_disk_snapshots", "disk_snapshots",             \
        "Snapshots of recurrent states on the disk tier.")                                         \
    ROW(uint64_t, n_disk_saved_snapshots, COUNTER, 1, "weft_disk_saved_snapshots_total",           \
        "disk_saved_snapshots", "Snapshots written to the disk.")                                  \
    ROW(uint64_t, n_disk_loaded_snapshots, COUNTER, 1, "weft_disk_loaded_snapshots_total",         \
        "disk_loaded_snapshots", "Snapshots read from the disk.")                                  \
    ROW(uint64_t, n_swapped, COUNTER, 1, "weft_preemptions_offloaded_total",                       \
        "preemptions_offloaded", "Preemptions whose pages were copied to host memory.")            \
    ROW(uint64_t, n_not_swapped, COUNTER, 1, "weft_preemptions_recomputed_total",                  \
        "preemptions_recomputed", "Preemptions whose tokens are computed again.")                  \
    ROW(uint32_t, n_states, GAUGE, 1, "weft_states", "states", "Slots for recurrent states.")      \
    ROW(uint32_t, n_states_used, GAUGE, 1, "weft_states_used", "states_used",                      \
        "Slots for recurrent states in use.")                                                      \
    ROW(uint32_t, n_snapshots, GAUGE, 1, "weft_snapshots", "snapshots",                            \
        "Snapshots of recurrent states.")                                                          \
    ROW(uint64_t, snapshot_bytes, GAUGE, 1, "weft_snapshot_bytes", "snapshot_bytes",               \
        "Memory of snapshots.")                                                                    \
    ROW(uint64_t, n_snapshots_made, COUNTER, 1, "weft_snapshots_made_total", "snapshots_made",     \
        "Snapshots made.")                                                                         \
    ROW(uint64_t, n_snapshots_used, COUNTER, 1, "weft_snapshots_used_total", "snapshots_used",     \
        "Requests that began with a snapshot.")                                                    \
    ROW(uint64_t, n_snapshots_evicted, COUNTER, 1, "weft_snapshots_evicted_total",                 \
        "snapshots_evicted", "Snapshots evicted for others or with their pages.")                  \
    ROW(uint32_t, n_windows, GAUGE, 1, "weft_window_pages", "window_pages",                        \
        "Pages of layers with a window.")                                                          \
    ROW(uint32_t, n_windows_used, GAUGE, 1, "weft_window_pages_used", "window_pages_used",         \
        "Window pages that requests read.")                                                        \
    ROW(uint64_t, n_windows_evicted, COUNTER, 1, "weft_window_pages_evicted_total",                \
        "window_pages_evicted", "Cached window pages evicted.")                                    \
    ROW(uint64_t, n_window_missed_tokens, COUNTER, 1, "weft_window_missed_tokens_total",           \
        "window_missed_tokens", "Cached prefix tokens computed again for want of window pages.")   \
    ROW(uint32_t, n_host_layers, GAUGE, 1, "weft_host_expert_layers", "host_expert_layers",        \
        "Layers with experts in host memory beside a device.")                                     \
    ROW(uint64_t, host_expert_bytes, GAUGE, 1, "weft_host_expert_bytes", "host_expert_bytes",      \
        "Weights of these experts, in host memory.")                                               \
    ROW(uint32_t, n_host_experts, GAUGE, 1, "weft_host_experts", "host_experts",                   \
        "Experts in host memory that the device does not have when it is loaded.")                 \
    ROW(uint64_t, n_picks, COUNTER, 1, "weft_expert_picks_total", "expert_picks",                  \
        "Experts that rows picked; updated every 64 steps.")                                       \
    ROW(uint64_t, n_host_picks, COUNTER, 1, "weft_host_expert_picks_total", "host_expert_picks",   \
        "Picks of experts that the device did not have.")                                          \
    ROW(uint64_t, n_evicted, COUNTER, 1, "weft_pages_evicted_total", "evicted",                    \
        "Cached pages evicted.")                                                                   \
    ROW(uint32_t, n_pages, GAUGE, 1, "", "pages", "KV pages.")                                     \
    ROW(uint32_t, n_used, GAUGE, 1, "", "pages_used", "Pages that requests hold.")                 \
    ROW(uint32_t, n_cached, GAUGE, 1, "weft_pages_cached", "pages_cached",                         \
        "Pages that hold idle prefixes.")                                                          \
    ROW(uint32_t, n_free, GAUGE, 1, "weft_pages_free", "pages_free", "Free pages.")                \
    ROW(uint32_t, n_pinned, GAUGE, 1, "weft_pages_pinned", "pages_pinned",                         \
        "Cached pages pinned for a session's next turn.")                                          \
    ROW(uint64_t, n_recomputed_tokens, COUNTER, 1, "weft_recomputed_tokens_total",                 \
        "recomputed_tokens",                                                                       \
        "Prompt tokens computed again that an earlier turn of the session had computed.")          \
    ROW(uint64_t, n_pins_dropped, COUNTER, 1, "weft_pins_dropped_total", "pins_dropped",           \
        "Pinned turns whose pages other requests needed.")                                         \
    ROW(uint64_t, n_prewarm_tokens, COUNTER, 1, "weft_prewarm_tokens_total", "prewarm_tokens",     \
        "Tokens computed ahead for the next turns of chats; no other counter has them.")           \
    ROW(uint64_t, n_prewarm_hit_tokens, COUNTER, 1, "weft_prewarm_hit_tokens_total",               \
        "prewarm_hit_tokens", "Prewarmed tokens that the turn then found in the prefix cache.")    \
    ROW(uint64_t, n_pictures_computed, COUNTER, 1, "weft_pictures_computed_total",                 \
        "pictures_computed", "Pictures whose rows were computed.")                                 \
    ROW(uint64_t, n_picture_hits, COUNTER, 1, "weft_picture_hits_total", "picture_hits",           \
        "Times that a request found the rows of a picture computed.")                              \
    ROW(uint64_t, picture_ns_total, COUNTER, 1e9, "weft_picture_seconds_total", "picture_ns",      \
        "Time that computing pictures took.")                                                      \
    ROW(uint64_t, picture_bytes, GAUGE, 1, "weft_picture_bytes", "picture_bytes",                  \
        "Memory of the rows of pictures.")                                                         \
    ROW(uint32_t, n_tenants, GAUGE, 1, "weft_tenants_active", "tenants",                           \
        "Tenants that have requests at the worker.")                                               \
    ROW(double, jain, GAUGE, 1, "weft_fairness_jain", "jain",                                      \
        "Jain's index of device time by weight in the last minute, all models; 1 is equal.")       \
    ROW(uint32_t, last_step_us, GAUGE, 1e6, "weft_last_step_seconds", "last_step_us",              \
        "Time of the last step.")                                                                  \
    ROW(uint32_t, last_plan_us, GAUGE, 1e6, "", "last_plan_us", "Time to plan the last step.")     \
    ROW(uint32_t, first_row_us, GAUGE, 1e6, "weft_expected_step_seconds", "first_row_us",          \
        "Expected time of a step that computes one token.")                                        \
    ROW(uint32_t, next_row_us, GAUGE, 1e6, "weft_expected_row_seconds", "next_row_us",             \
        "Expected time that one more prompt token adds to a step.")                                \
    ROW(uint32_t, last_rows, GAUGE, 1, "weft_last_step_rows", "last_rows",                         \
        "Tokens computed in the last step.")                                                       \
    ROW(uint32_t, last_seqs, GAUGE, 1, "", "last_seqs", "Sequences of the last step.")             \
    ROW(uint64_t, n_rows, COUNTER, 1, "", "rows", "Tokens computed in all steps.")                 \
    ROW(uint64_t, step_ns_total, COUNTER, 1e9, "", "step_ns", "Time of all steps.")                \
    ROW(uint64_t, plan_ns_total, COUNTER, 1e9, "", "plan_ns", "Time to plan all steps.")           \
    ROW(uint64_t, wait_ns_total, COUNTER, 1e9, "", "wait_ns",                                      \
        "Time that the host waited for steps.")

/* Counters of a worker that are arrays of uint64_t, one element for each draft source. */
#define WORKER_STATS_BY_SOURCE(ROW)                                                                \
    ROW(drafted_by, "weft_draft_tokens_total", "drafted", "Drafted tokens by source.")             \
    ROW(accepted_by, "weft_draft_accepted_tokens_total", "accepted",                               \
        "Accepted drafted tokens by source.")

/* Upper bounds of the buckets of step_rows, in tokens; a negative number ends the list. Steps above
 * the last bound are in a bucket of their own. The buckets are vLLM's. */
#define STEP_ROWS_BUCKETS 14
extern const double step_rows_bounds[STEP_ROWS_BUCKETS];

/* Statistics of the front since it started. */
#define FRONT_STATS(ROW)                                                                           \
    ROW(uint32_t, n_connections, GAUGE, 1, "weft_connections", "connections",                      \
        "Open client connections.")                                                                \
    ROW(uint32_t, n_running, GAUGE, 1, "", "running", "Generations at the worker.")                \
    ROW(uint32_t, n_queued, GAUGE, 1, "", "queued", "Generations that wait in the front.")         \
    ROW(uint32_t, n_stored, GAUGE, 1, "weft_stored_responses", "stored",                           \
        "Stored responses and conversations.")                                                     \
    ROW(uint64_t, stored_bytes, GAUGE, 1, "weft_stored_bytes", "stored_bytes",                     \
        "Memory of stored responses and conversations.")                                           \
    ROW(uint64_t, n_requests, COUNTER, 1, "weft_http_requests_total", "requests",                  \
        "Requests answered.")                                                                      \
    ROW(uint64_t, n_ok, COUNTER, 1, "", "ok", "Answers 2xx, and all of /health.")                  \
    ROW(uint64_t, n_client_errors, COUNTER, 1, "weft_http_client_errors_total", "client_errors",   \
        "Answers 4xx.")                                                                            \
    ROW(uint64_t, n_server_errors, COUNTER, 1, "weft_http_server_errors_total", "server_errors",   \
        "Answers 5xx, except those of /health.")                                                   \
    ROW(uint64_t, n_rejected, COUNTER, 1, "weft_http_rejected_total", "rejected",                  \
        "Answers 429 and 503, except those of /health.")                                           \
    ROW(uint64_t, n_cancelled, COUNTER, 1, "weft_http_cancelled_total", "cancelled",               \
        "Requests whose client left.")                                                             \
    ROW(uint64_t, n_displaced, COUNTER, 1, "weft_connections_displaced_total", "displaced",        \
        "Connections closed to make room for others.")                                             \
    ROW(uint64_t, n_lost_bodies, COUNTER, 1, "weft_bodies_lost_total", "lost_bodies",              \
        "Unfinished request bodies dropped to make room for others.")                              \
    ROW(uint64_t, n_lost_outputs, COUNTER, 1, "weft_outputs_lost_total", "lost_outputs",           \
        "Answers cut off to make room for others, because their clients read too slowly.")         \
    ROW(uint64_t, n_deferred, COUNTER, 1, "weft_reads_deferred_total", "deferred_reads",           \
        "Iterations of the event loop that left readable connections to the next one.")            \
    ROW(uint64_t, n_unlogged, COUNTER, 1, "weft_log_lines_suppressed_total", "log_suppressed",     \
        "Requests without a log line: their clients caused more than log-requests.")               \
    ROW(uint64_t, n_prompt_tokens, COUNTER, 1, "vllm:prompt_tokens_total", "prompt_tokens",        \
        "Prompt tokens.")                                                                          \
    ROW(uint64_t, n_cached_tokens, COUNTER, 1, "vllm:prompt_tokens_cached_total", "cached_tokens", \
        "Prompt tokens found in the prefix cache.")                                                \
    ROW(uint64_t, n_output_tokens, COUNTER, 1, "vllm:generation_tokens_total", "output_tokens",    \
        "Output tokens.")                                                                          \
    ROW(uint64_t, n_resumed, COUNTER, 1, "weft_resumed_total", "resumed",                          \
        "Generations resumed by a new worker.")                                                    \
    ROW(uint64_t, n_loops, COUNTER, 1, "weft_loops_ended_total", "loops_ended",                    \
        "Outputs and reasoning ended by loop-breaker.")                                            \
    ROW(uint64_t, n_workers_lost, COUNTER, 1, "weft_workers_lost_total", "workers_lost",           \
        "Workers that died.")                                                                      \
    ROW(uint64_t, n_traces, COUNTER, 1, "weft_traces_exported_total", "traces_exported",           \
        "Requests whose spans the collector accepted.")                                            \
    ROW(uint64_t, n_traces_waiting, GAUGE, 1, "weft_traces_waiting", "traces_waiting",             \
        "Requests whose spans the collector has not accepted yet.")                                \
    ROW(uint64_t, n_traces_dropped, COUNTER, 1, "weft_traces_dropped_total", "traces_dropped",     \
        "Requests whose spans the collector refused, or for which the queue was full.")            \
    ROW(uint64_t, n_kv_batches, COUNTER, 1, "weft_kv_events_published_total", "kv_batches",        \
        "Batches of KV events published.")                                                         \
    ROW(uint64_t, n_kv_overruns, COUNTER, 1, "weft_kv_events_overruns_total", "kv_overruns",       \
        "Times that a subscriber was so far behind that it began to miss batches.")                \
    ROW(uint64_t, n_kv_replayed, COUNTER, 1, "weft_kv_events_replayed_total",                      \
        "kv_batches_replayed", "Batches of KV events sent again.")                                 \
    ROW(uint32_t, loop_lag_us, GAUGE, 1e6, "weft_loop_lag_longest_seconds", "loop_lag_us",         \
        "Longest iteration of the event loop in the last minute.")

/* Statistics of one tenant; in /metrics with the label "tenant". */
#define TENANT_STATS(ROW)                                                                          \
    ROW(uint32_t, n_running, GAUGE, 1, "weft_tenant_requests_running", "running",                  \
        "Generations at the worker.")                                                              \
    ROW(uint32_t, n_queued, GAUGE, 1, "weft_tenant_requests_waiting", "queued",                    \
        "Generations that wait in the front.")                                                     \
    ROW(uint64_t, n_context, GAUGE, 1, "", "context_tokens",                                       \
        "Most tokens that its running generations can hold.")                                      \
    ROW(uint64_t, n_reserved, GAUGE, 1, "", "reserved_tokens",                                     \
        "Tokens of its limit that live generations have reserved.")                                \
    ROW(uint64_t, n_requests, COUNTER, 1, "weft_tenant_requests_total", "requests",                \
        "Requests admitted or queued.")                                                            \
    ROW(uint64_t, n_limited, COUNTER, 1, "weft_tenant_limited_total", "limited",                   \
        "Requests refused with 429.")                                                              \
    ROW(uint64_t, n_prompt_tokens, COUNTER, 1, "weft_tenant_prompt_tokens_total", "prompt_tokens", \
        "Prompt tokens.")                                                                          \
    ROW(uint64_t, n_cached_tokens, COUNTER, 1, "weft_tenant_cached_tokens_total", "cached_tokens", \
        "Prompt tokens found in the cache.")                                                       \
    ROW(uint64_t, n_output_tokens, COUNTER, 1, "weft_tenant_output_tokens_total", "output_tokens", \
        "Output tokens.")                                                                          \
    ROW(uint64_t, device_ns, COUNTER, 1e9, "weft_tenant_device_seconds_total", "device_ns",        \
        "Device time.")

#define MSG_DEVICES 8

/* Statistics of each CUDA device that computes the model, from NVML; absent without NVML. */
#define DEVICE_STATS(ROW)                                                                          \
    ROW(uint64_t, memory_bytes, GAUGE, 1, "weft_device_memory_bytes", "memory_bytes",              \
        "Memory of the CUDA device.")                                                              \
    ROW(uint64_t, memory_used_bytes, GAUGE, 1, "weft_device_memory_used_bytes",                    \
        "memory_used_bytes", "Memory of the CUDA device that programs use.")                       \
    ROW(uint64_t, energy_mj, COUNTER, 1e3, "weft_device_energy_joules_total", "energy_mj",         \
        "Energy that the device has used since the driver started.")                               \
    ROW(uint32_t, power_mw, GAUGE, 1e3, "weft_device_power_watts", "power_mw",                     \
        "Power that the device draws.")                                                            \
    ROW(uint32_t, clock_mhz, GAUGE, 1e-6, "weft_device_clock_hertz", "clock_mhz",                  \
        "Clock of the device's multiprocessors.")                                                  \
    ROW(uint32_t, celsius, GAUGE, 1, "weft_device_temperature_celsius", "celsius",                 \
        "Temperature of the device.")                                                              \
    ROW(uint32_t, throttled, GAUGE, 1, "weft_device_throttled", "throttled",                       \
        "1: the device's clock is lowered for power or heat.")

#define STAT_FIELD(type, field, kind, per, metric, key, help) type field;
#define STAT_SOURCE_FIELD(field, metric, key, help) uint64_t field[MSG_DRAFT_SOURCES];

/* A device of CUDA, with its number and statistics. */
struct msg_device {
    uint32_t number;
    DEVICE_STATS(STAT_FIELD)
};

/* A worker's statistics. Its bytes are the payload of a STATS frame. */
struct msg_stats {
    /* time of clock_monotonic at which this was written */
    int64_t at_ns;
    WORKER_STATS(STAT_FIELD)
    WORKER_STATS_BY_SOURCE(STAT_SOURCE_FIELD)
    /* number of steps by the tokens that they computed */
    uint64_t step_rows[STEP_ROWS_BUCKETS];
    /* at most MSG_DEVICES, which the front checks */
    uint32_t n_devices;
    struct msg_device device[MSG_DEVICES];
};

/* The front's statistics over all tenants and models. */
struct api_stats {
    FRONT_STATS(STAT_FIELD)
};

/* The front's statistics of one tenant. */
struct tenant_stats {
    TENANT_STATS(STAT_FIELD)
};

/* Prometheus's kinds of metrics: a counter grows until its process ends. */
enum stat_kind { STAT_COUNTER, STAT_GAUGE };

/* A row of a table above. */
struct stat_row {
    const char *metric, *key, *help;
    /* offset and size of the field in its struct */
    size_t offset, size;
    enum stat_kind kind;
    /* the field is a double */
    bool is_real;
    /* divisor of the metric: 1e9 for ns shown as seconds */
    double per;
};

extern const struct stat_row worker_rows[], source_rows[], device_rows[], front_rows[],
    tenant_rows[];
extern const size_t n_worker_rows, n_source_rows, n_device_rows, n_front_rows, n_tenant_rows;

/* Return the field of row @s in @stats, which is a struct of the row's table. */
uint64_t stat_whole(const struct stat_row *s, const void *stats); /* for rows that are not real */
/* any row; the value is not divided by per */
double stat_value(const struct stat_row *s, const void *stats);
/* Returns the array [MSG_DRAFT_SOURCES] of a row of source_rows. */
const uint64_t *stat_by_source(const struct stat_row *s, const struct msg_stats *stats);
