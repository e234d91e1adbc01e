/*
 * weft-bench engine - measures how fast a model is computed, without scheduler and HTTP, as
 * llama-bench does.
 *
 *   prefill   a prompt of -p tokens into an empty context
 *   decode    -n tokens, one at a time, for each of B sequences in one batch, after -d tokens of
 *             context
 *   replay    recorded prompts and outputs; the recorded token follows, whatever was sampled, but
 *             all tokens are computed: gives the rates of real text and the share of tokens that
 *             greedy sampling predicts
 *
 * Decoding reads every weight once in each step. The rate of these bytes is compared with the rate
 * at which as many threads can read memory, measured before and after; the faster measurement
 * counts.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "cmd/bench_bandwidth.h"
#include "cmd/bench_clock.h"
#include "cmd/bench_cmd.h"
#include "cmd/bench_json.h"
#include "cmd/bench_replay.h"
#include "cmd/bench_run.h"
#include "cmd/cli.h"
#include "cmd/kv_option.h"

#define BATCHES_MAX 16u
#define BATCH_MAX 1024u
#define RESULTS_MAX (BATCHES_MAX + 2)

static const char usage[] =
    "usage: weft-bench engine --model FILE [options]\n"
    "Measures prefill and decode without a server.\n"
    "  --threads N        threads; 0: one per core (0)\n"
    "  --backend B        backend: reference, cpu, cuda or auto (auto)\n"
    "  --isa I            instruction set of the cpu backend, such as avx2, or auto (auto)\n"
    "  --kv T[,T]         format of keys and values, or of each: " KV_TYPE_NAMES " (f16)\n"
    "  -p N               prompt tokens; 0: no prefill (512)\n"
    "  -n N               tokens to decode; 0: no decode (128)\n"
    "  -d N               context tokens before the decoded ones (0)\n"
    "  --batch B,B,...    sequences decoded together (1)\n"
    "  --rows N           rows of a prefill step (512)\n"
    "  --reps R           repetitions (5)\n"
    "  --replay FILE      compute recorded requests instead, the first --batch of them at a time\n"
    "  --no-bandwidth     do not measure how fast memory is read\n"
    "  --json FILE        write the result as JSON (-: stdout)\n";

struct result {
    const char *test;
    uint32_t n_seqs, n_tokens, depth;
    /* tokens per second of all sequences together */
    struct samples rate;
};

struct bench {
    struct kv_formats kv_type;
    const char *model, *backend, *isa, *kv, *batch_text, *replay_path, *json;
    uint32_t n_threads, n_prompt, n_decode, depth, rows, reps;
    uint32_t batch[BATCHES_MAX], n_batches;
    bool bandwidth;

    struct run run;
    struct replay replay;
    uint64_t n_agree, n_replayed;
    /* bytes per second; 0: not measured */
    double read_rate;
    struct result result[RESULTS_MAX];
    uint32_t n_results;
};

static double bench_engine_seconds_since(int64_t start) {
    return (double)(bench_now_ns() - start) * 1e-9;
}

static struct result *new_result(struct bench *b, const char *test, uint32_t n_seqs,
                                 uint32_t n_tokens, uint32_t depth) {
    assert(b->n_results < RESULTS_MAX && n_seqs > 0);
    struct result *r = &b->result[b->n_results++];

    *r = (struct result){.test = test, .n_seqs = n_seqs, .n_tokens = n_tokens, .depth = depth};
    fprintf(stderr, "%s, %u tokens, %u sequence%s\n", test, n_tokens, n_seqs,
            n_seqs == 1 ? "" : "s");
    return r;
}

static int32_t *random_tokens(const struct bench *b, uint32_t n) {
    int32_t *t = calloc(MAX(n, 1u), sizeof(*t));
    struct rng rng = {1};

    for (uint32_t i = 0; t && i < n; i++)
        t[i] = (int32_t)rng_below(&rng, b->run.info->n_vocab);
    return t;
}

/* Computes a prompt into an empty context, b->reps times. Returns 0 or -errno. */
static int measure_prefill(struct bench *b) {
    CLEANUP(freep) int32_t *tokens = random_tokens(b, b->n_prompt);
    struct result *res = new_result(b, "prefill", 1, b->n_prompt, 0);

    if (!tokens)
        return -ENOMEM;
    TRY(run_prefill(&b->run, 0, 0, tokens, MIN(b->n_prompt, b->rows), NULL)); /* warms up */
    for (uint32_t i = 0; i < b->reps; i++) {
        int64_t start = bench_now_ns();

        TRY(run_prefill(&b->run, 0, 0, tokens, b->n_prompt, NULL));
        TRY(samples_add(&res->rate, b->n_prompt / bench_engine_seconds_since(start)));
    }
    return 0;
}

/* Computes the context of @n_seqs sequences. @again: they had the context before and have
 * continued; their pages still hold it, a recurrent state does not. Returns 0 or -errno. */
static int fill_context(struct bench *b, uint32_t n_seqs, const int32_t *tokens, bool again) {
    if (again && b->run.info->n_states == 0)
        return 0;
    for (uint32_t s = 0; s < n_seqs; s++)
        TRY(run_prefill(&b->run, s, 0, tokens, b->depth, NULL));
    return 0;
}

/* Decodes @n_seqs sequences together token by token, b->reps times. Returns 0 or -errno. */
static int measure_decode(struct bench *b, uint32_t n_seqs) {
    CLEANUP(freep) int32_t *tokens = random_tokens(b, MAX(b->depth, n_seqs));
    struct result *res = new_result(b, "decode", n_seqs, b->n_decode, b->depth);

    TRY(tokens ? fill_context(b, n_seqs, tokens, false) : -ENOMEM);
    TRY(run_generate(&b->run, n_seqs, b->depth, MIN(b->n_decode, 4u), tokens, NULL)); /* warms up */
    for (uint32_t i = 0; i < b->reps; i++) {
        TRY(fill_context(b, n_seqs, tokens, true));
        int64_t start = bench_now_ns();
        TRY(run_generate(&b->run, n_seqs, b->depth, b->n_decode, tokens, NULL));
        TRY(samples_add(&res->rate,
                        (double)b->n_decode * n_seqs / bench_engine_seconds_since(start)));
    }
    return 0;
}

/* Decodes requests [begin, begin + n) together; each leaves when its record ends. */
static int replay_group(struct bench *b, uint32_t begin, uint32_t n, double *prefill_s,
                        double *decode_s) {
    uint32_t slot[BATCH_MAX], pos[BATCH_MAX], live = n;
    int32_t next[BATCH_MAX], token[BATCH_MAX];
    int r = 0;

    assert(n > 0 && n <= BATCH_MAX && begin + n <= b->replay.n);
    int64_t start = bench_now_ns();
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        const struct replay_request *q = &b->replay.request[begin + i];

        slot[i] = i;
        pos[i] = q->n_prompt;
        r = run_prefill(&b->run, i, 0, q->token.id, q->n_prompt, &next[i]);
    }
    *prefill_s += bench_engine_seconds_since(start);
    start = bench_now_ns();
    while (r == 0 && live) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < live; i++) { /* next[i] was sampled for position pos[i] */
            const struct replay_request *q = &b->replay.request[begin + slot[i]];

            assert(pos[i] < q->token.n);
            b->n_agree += next[i] == q->token.id[pos[i]];
            b->n_replayed++;
            if (pos[i] + 1 == q->token.n)
                continue;
            slot[kept] = slot[i];
            pos[kept] = pos[i];
            token[kept++] = q->token.id[pos[i]];
        }
        live = kept;
        if (live)
            r = run_decode(&b->run, live, slot, pos, token, next);
        for (uint32_t i = 0; i < live; i++)
            pos[i]++;
    }
    *decode_s += bench_engine_seconds_since(start);
    return r;
}

/* Replays all recorded requests, in groups of the first batch size, b->reps times. Returns 0 or
 * -errno. */
static int measure_replay(struct bench *b) {
    uint32_t group = MIN(b->batch[0], b->replay.n), n_prompt = 0, n_output = 0;

    for (uint32_t i = 0; i < b->replay.n; i++) {
        n_prompt += b->replay.request[i].n_prompt;
        n_output += (uint32_t)b->replay.request[i].token.n - b->replay.request[i].n_prompt;
    }
    struct result *prefill = new_result(b, "replay prefill", 1, n_prompt, 0);
    struct result *decode = new_result(b, "replay decode", group, n_output, 0);
    for (uint32_t rep = 0; rep < b->reps; rep++) {
        double prefill_s = 0, decode_s = 0;

        for (uint32_t at = 0; at < b->replay.n; at += group)
            TRY(replay_group(b, at, MIN(group, b->replay.n - at), &prefill_s, &decode_s));
        TRY(samples_add(&prefill->rate, n_prompt / prefill_s));
        /* The first output token of a request comes from its prefill. */
        if (n_output > b->replay.n)
            TRY(samples_add(&decode->rate, (n_output - b->replay.n) / decode_s));
    }
    return 0;
}

static int measure_all(struct bench *b) {
    if (b->replay_path)
        return measure_replay(b);
    if (b->n_prompt)
        TRY(measure_prefill(b));
    for (uint32_t i = 0; b->n_decode && i < b->n_batches; i++)
        TRY(measure_decode(b, b->batch[i]));
    return 0;
}

static int measure_bandwidth(struct bench *b) {
    double rate = 0;
    int r = 0;

    /* the host's memory bounds only backends of the host */
    if (b->bandwidth && strcmp(b->run.info->backend, "cuda") != 0)
        r = bandwidth_measure(b->run.info->n_threads, bandwidth_buffer(), 1, &rate);
    b->read_rate = MAX(b->read_rate, rate);
    return r;
}

/* Returns true if the result is of decoding, whose bytes are counted per step: a batch of B reads
 * the weights once for B tokens. */
static bool is_decode(const struct result *r) {
    return strstr(r->test, "decode") != NULL;
}

static double bytes_per_s(const struct bench *b, const struct result *r, double rate) {
    return (double)b->run.bytes_per_token * rate / r->n_seqs;
}

static void bench_engine_print(struct bench *b, FILE *f) {
    const struct engine_info *i = b->run.info;

    fprintf(f, "model      %s (%s, %.2f M parameters, %.2f MiB of weights)\n",
            i->name[0] ? i->name : b->model, i->arch, (double)i->n_params * 1e-6,
            (double)i->weight_bytes / 0x1p20);
    fprintf(f, "backend    %s %s, %u threads\n", i->backend, text_or(i->isa, ""), i->n_threads);
    if (b->read_rate > 0)
        fprintf(f, "memory     %.1f GB/s read by %u threads\n", b->read_rate * 1e-9, i->n_threads);
    fprintf(f, "\n%-15s %5s %7s %7s  %18s  %9s %8s\n", "test", "seqs", "tokens", "depth",
            "tokens/s", "GB/s", "of limit");
    for (uint32_t k = 0; k < b->n_results; k++) {
        struct result *r = &b->result[k];
        struct summary s = samples_summary(&r->rate);

        if (!s.n)
            continue;
        fprintf(f, "%-15s %5u %7u %7u  %10.2f ± %5.2f", r->test, r->n_seqs, r->n_tokens, r->depth,
                s.mean, s.sd);
        if (is_decode(r))
            fprintf(f, "  %9.2f", bytes_per_s(b, r, s.mean) * 1e-9);
        if (is_decode(r) && b->read_rate > 0)
            fprintf(f, " %6.1f %%", 100 * bytes_per_s(b, r, s.mean) / b->read_rate);
        fputc('\n', f);
    }
    if (b->n_replayed)
        fprintf(f, "\ngreedy sampling agrees with %" PRIu64 " of %" PRIu64 " recorded tokens\n",
                b->n_agree, b->n_replayed);
}

static int bench_engine_write_json(struct bench *b) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d), *list, *v;
    const struct engine_info *i = b->run.info;

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "benchmark", "engine");
    yyjson_mut_obj_add_str(d, root, "model", b->model);
    yyjson_mut_obj_add_str(d, root, "arch", i->arch);
    yyjson_mut_obj_add_str(d, root, "backend", i->backend);
    yyjson_mut_obj_add_str(d, root, "isa", text_or(i->isa, ""));
    yyjson_mut_obj_add_uint(d, root, "threads", i->n_threads);
    yyjson_mut_obj_add_uint(d, root, "n_params", i->n_params);
    yyjson_mut_obj_add_uint(d, root, "weight_bytes", i->weight_bytes);
    yyjson_mut_obj_add_uint(d, root, "bytes_per_step", b->run.bytes_per_token);
    if (b->read_rate > 0)
        yyjson_mut_obj_add_real(d, root, "read_gb_per_s", b->read_rate * 1e-9);
    list = yyjson_mut_obj_add_arr(d, root, "results");
    for (uint32_t k = 0; k < b->n_results; k++) {
        struct result *r = &b->result[k];
        struct summary s = samples_summary(&r->rate);

        v = yyjson_mut_arr_add_obj(d, list);
        yyjson_mut_obj_add_str(d, v, "test", r->test);
        yyjson_mut_obj_add_uint(d, v, "seqs", r->n_seqs);
        yyjson_mut_obj_add_uint(d, v, "tokens", r->n_tokens);
        yyjson_mut_obj_add_uint(d, v, "depth", r->depth);
        bench_json_summary(d, v, "tokens_per_s", &s, 1);
        if (is_decode(r))
            yyjson_mut_obj_add_real(d, v, "gb_per_s", bytes_per_s(b, r, s.mean) * 1e-9);
        if (is_decode(r) && b->read_rate > 0)
            yyjson_mut_obj_add_real(d, v, "share_of_limit",
                                    bytes_per_s(b, r, s.mean) / b->read_rate);
    }
    if (b->n_replayed) {
        yyjson_mut_obj_add_uint(d, root, "replayed_tokens", b->n_replayed);
        yyjson_mut_obj_add_uint(d, root, "greedy_agrees", b->n_agree);
    }
    return bench_json_write(d, b->json);
}

/* Parses the numbers of --batch. Returns -1, or an exit code. */
static int parse_batches(struct bench *b) {
    CLEANUP(freep) char *copy = strdup(b->batch_text);
    char *rest = copy, *part;

    while (copy && (part = strsep(&rest, ",")))
        if (b->n_batches == BATCHES_MAX || !cli_u32(part, 1, BATCH_MAX, &b->batch[b->n_batches++]))
            return cli_usage("--batch: \"%s\" is not a list of at most %u numbers from 1 to %u",
                             b->batch_text, BATCHES_MAX, BATCH_MAX);
    if (copy)
        return -1;
    return cli_fail("out of memory");
}

/* Opens the engine. The longest sequence and the largest batch determine how much memory it
 * takes. */
static int open_engine(struct bench *b, struct err *err) {
    struct run_opts o = {
        .model = b->model,
        .backend = b->backend,
        .isa = b->isa,
        .n_threads = b->n_threads,
        .kv_type = b->kv_type,
        .max_rows = b->rows,
        .max_seqs = 1,
        .max_tokens = MAX(b->n_prompt, b->depth + b->n_decode),
    };

    for (uint32_t i = 0; i < b->n_batches; i++)
        o.max_seqs = MAX(o.max_seqs, b->batch[i]);
    if (b->replay_path) {
        CLEANUP(gguf_freep) struct gguf *g = NULL;
        TRY(checkpoint_open_model(&g, b->model, err));
        TRY(replay_read(&b->replay, b->replay_path, g, err));
        o.max_seqs = MIN(b->batch[0], b->replay.n);
        o.max_tokens = b->replay.longest;
    }
    return run_open(&b->run, &o, err);
}

/* Measures the engine between two measurements of the machine's bandwidth. */
static int measure_between(struct bench *b) {
    TRY(measure_bandwidth(b));
    TRY(measure_all(b));
    return measure_bandwidth(b);
}

static int bench_engine_measure(struct bench *b) {
    struct err err = {0};
    int code = CLI_OK, r = open_engine(b, &err);

    if (r < 0)
        return cli_fail_err(b->replay_path ? b->replay_path : b->model, &err, r);
    r = measure_between(b);
    if (r < 0)
        return cli_fail("%s: %s", b->model, strerror(-r));
    bench_engine_print(b, b->json && strcmp(b->json, "-") == 0 ? stderr : stdout);
    if (b->json)
        code = bench_engine_write_json(b);
    return cli_flush(code);
}

int bench_cmd_engine(int argc, char **argv) {
    struct bench b = {
        .backend = "auto",
        .isa = "auto",
        .kv = "f16",
        .batch_text = "1",
        .n_prompt = 512,
        .n_decode = 128,
        .rows = 512,
        .reps = 5,
        .bandwidth = true,
    };
    const struct cli_option options[] = {
        {"model", CLI_TEXT, &b.model, 0, 0},
        {"threads", CLI_U32, &b.n_threads, 0, 1024},
        {"backend", CLI_TEXT, &b.backend, 0, 0},
        {"isa", CLI_TEXT, &b.isa, 0, 0},
        {"kv", CLI_TEXT, &b.kv, 0, 0},
        {"p", CLI_U32, &b.n_prompt, 0, 1 << 24},
        {"n", CLI_U32, &b.n_decode, 0, 1 << 24},
        {"d", CLI_U32, &b.depth, 0, 1 << 24},
        {"batch", CLI_TEXT, &b.batch_text, 0, 0},
        {"rows", CLI_U32, &b.rows, 1, 65536},
        {"reps", CLI_U32, &b.reps, 1, 100000},
        {"replay", CLI_TEXT, &b.replay_path, 0, 0},
        {"no-bandwidth", CLI_FALSE, &b.bandwidth, 0, 0},
        {"json", CLI_TEXT, &b.json, 0, 0},
    };
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code < 0 && n_args)
        code = cli_usage("unexpected argument \"%s\"", argv[1]);
    if (code < 0 && !b.model)
        code = cli_usage("--model is missing: the GGUF file to measure");
    if (code < 0 && !kv_option_read(b.kv, &b.kv_type))
        code = cli_usage("--kv \"%s\": formats are " KV_TYPE_NAMES, b.kv);
    if (code < 0 && !b.replay_path && !b.n_prompt && !b.n_decode)
        code = cli_usage("-p 0 and -n 0 leave nothing to measure");
    if (code < 0)
        code = parse_batches(&b);
    if (code < 0)
        code = bench_engine_measure(&b);
    run_close(&b.run);
    replay_deinit(&b.replay);
    for (uint32_t i = 0; i < b.n_results; i++)
        samples_deinit(&b.result[i].rate);
    return code;
}
