/*
 * weft-synth - writes model files of any shape and format with random weights, for tests and
 * measurements. A file depends only on the options: every tensor has its own random sequence, keyed
 * by the seed and the tensor's name, so its bytes do not depend on the rest of the file or on how
 * it is split.
 */

#include "tests/support/synth/gguf_synth.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "tests/support/synth/gguf_fill.h"
#include "tests/support/synth/synth.h"

#define CHUNK_BYTES                                                                                \
    ((size_t)1 << 20) /* bytes of weights made at a time, which affect the content */
#define SHARDS_MAX 512u

struct options {
    const char *arch, *shape, *format, *vocab, *out, *projector;
    uint64_t seed;
    uint32_t n_vocab, n_shards;
};

static const char usage[] =
    "usage: weft-synth --shape SHAPE --format FORMAT [options] -o OUT.gguf\n"
    "Writes a model with random weights.\n"
    "  --arch A          llama, mistral3, gpt-oss, gemma4, gemma4-assistant, deepseek2,\n"
    "                    deepseek4, minimax-m2, muse-glimmer, step35, qwen2, qwen3, qwen3moe,\n"
    "                    qwen3next, qwen35, qwen35moe or qwen4exp; default: the shape's\n"
    "  --shape S         tiny, tinyllama, llama3-8b, devstral-24b, gpt-oss-20b, gemma-4-26b-a4b,\n"
    "                    gemma-4-26b-a4b-assistant, glm-4.7-flash, deepseek-v4-flash,\n"
    "                    minimax-m2.7, muse-glimmer-30b, step-3.5-flash, qwen2-0.5b, qwen3-0.6b,\n"
    "                    qwen3-8b, qwen3-30b-a3b, qwen3.6-27b, qwen3.6-35b-a3b,\n"
    "                    qwen3.8-flash-next or qwen3-coder-next, followed or replaced by "
    "key=value, separated by\n"
    "                    commas: n_layer, n_embd, n_head, n_kv, head_dim, n_ff, n_vocab, context,\n"
    "                    tied, theta, eps, n_expert, n_used, n_rot, n_shared, n_key, n_value,\n"
    "                    n_state, n_mtp, n_dense, n_lead, q_rank, kv_rank, v_dim, window, period,\n"
    "                    n_kv_window, window_dim, n_stream, n_low, n_index, index_dim, n_chosen,\n"
    "                    n_table, n_group, out_rank, n_head_window, factor, original, n_embd_out\n"
    "  --projector K     a projector (mmproj) of kind K: qwen3vl_merger, qwen2.5vl_merger,\n"
    "                    gemma3, gemma4v, gemma4uv, pixtral, lfm2, idefics3, internvl, kimivl,\n"
    "                    glm4v or hunyuanvl; --shape tiny or qwen3.6-27b, and n_layer,\n"
    "                    n_embd, n_head, n_ff, n_out, patch, side, period, n_deep, bounds\n"
    "  --format F        F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL\n"
    "                    IQ4_XS IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S\n"
    "                    TQ1_0 TQ2_0 MXFP4 NVFP4, or the mixes Q4_K_M Q5_K_M MXFP4_MOE\n"
    "  --seed N          seed of the random weights (1)\n"
    "  --vocab FILE      take the vocabulary of this GGUF file\n"
    "  --n-vocab N       size of the generated vocabulary\n"
    "  --split N         write N files\n"
    "  -o OUT            file to write; with --split OUT-00001-of-0000N.gguf\n";

static uint64_t tensor_seed(uint64_t seed, const char *name) {
    struct rng r = {seed};

    for (; *name; name++)
        r.state = rng_next(&r) ^ (uint8_t)*name;
    return rng_next(&r);
}

static uint64_t count_values(const struct synth_tensor *t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

/* Returns 0 or -errno. */
static int write_vector(struct gguf_write *w, const struct synth_tensor *t, uint64_t seed) {
    assert(t->format->type == TENSOR_F32);
    struct rng r = {tensor_seed(seed, t->name)};
    uint64_t n = count_values(t);
    CLEANUP(freep) float *v = calloc(n, sizeof(*v));

    if (!v)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) /* uniform, standard deviation 1: +-sqrt(3) */
        v[i] = (float)(t->mean + t->std * (rng_unit(&r) - 0.5) * 3.4641016151377544);
    return gguf_write_data(w, v, n * sizeof(*v));
}

/* Writes the identity: row i is 1 at column i, in floats or blocks of Q8_0 whose scale is 1. */
static int write_pass(struct gguf_write *w, const struct synth_tensor *t) {
    bool plain = t->format->type == TENSOR_F32;
    size_t size = t->ne[0] / t->format->block * t->format->block_bytes;
    CLEANUP(freep) uint8_t *row = malloc(size);
    static const float one = 1;
    int r = row ? 0 : -ENOMEM;

    assert(plain || t->format->type == TENSOR_Q8_0);
    for (uint64_t i = 0; i < t->ne[1] && r == 0; i++) {
        memset(row, 0, size);
        if (plain) {
            memcpy(row + i * sizeof(one), &one, sizeof(one));
        } else {
            uint8_t *block = row + i / 32 * t->format->block_bytes;

            block[1] = 0x3C; /* 1 as a half */
            block[2 + i % 32] = 1;
        }
        r = gguf_write_data(w, row, size);
    }
    return r;
}

static int write_divisors(struct gguf_write *w, const struct synth_tensor *t) {
    int r;

    for (uint64_t i = 0; i < t->ne[0]; i++) {
        float v = i < t->ne[0] / 4 ? 1.0f : 1e30f;

        if ((r = gguf_write_data(w, &v, sizeof(v))) != 0)
            return r;
    }
    return 0;
}

/* Writes rows of consecutive numbers of experts, from a random one on. */
static int write_picks(struct gguf_write *w, const struct synth_tensor *t, uint64_t seed) {
    struct rng r = {tensor_seed(seed, t->name)};
    uint64_t n = count_values(t);
    uint32_t n_expert = (uint32_t)t->mean, at = 0;
    CLEANUP(freep) int32_t *v = calloc(n, sizeof(*v));

    assert(t->format->type == TENSOR_I32 && t->ne[0] <= n_expert);
    if (!v)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        at = i % t->ne[0] ? (at + 1) % n_expert : (uint32_t)rng_below(&r, n_expert);
        v[i] = (int32_t)at;
    }
    return gguf_write_data(w, v, n * sizeof(*v));
}

static int write_matrix(struct gguf_write *w, const struct synth_tensor *t, uint64_t seed,
                        uint8_t *chunk) {
    assert(t->ne[0] % t->format->block == 0 && t->std > 0);
    uint64_t left = count_values(t) / t->format->block;
    size_t per_chunk = CHUNK_BYTES / t->format->block_bytes;
    struct gguf_fill fill;
    int r = 0;

    gguf_fill_init(&fill, t->format, t->std, tensor_seed(seed, t->name));
    while (r == 0 && left) {
        size_t n = MIN(left, per_chunk);

        gguf_fill_blocks(&fill, chunk, n);
        r = gguf_write_data(w, chunk, n * t->format->block_bytes);
        left -= n;
    }
    return r;
}

/* The model or projector that is written. */
struct subject {
    /* without options.projector */
    struct synth_shape shape;
    struct synth_projector projector;
    /* vocabulary to be copied, or NULL */
    struct gguf *vocab;
    struct synth_plan plan;
};

/* One file of the model: tensors [begin, end), at least one; together they are all of the plan. */
struct shard {
    uint32_t number, begin, end;
};

static int write_keys(struct gguf_write *w, const struct options *o, const struct subject *s,
                      uint32_t shard, struct err *err) {
    const struct synth_plan *p = &s->plan;
    int r = 0;

    if (shard == 0) {
        char name[128];

        snprintf(name, sizeof(name), "synth %s %s seed %" PRIu64,
                 o->projector ? o->projector : synth_arch_name(s->shape.arch), o->format, o->seed);
        if (o->projector)
            synth_projector_keys(w, &s->projector, p, name);
        else
            synth_keys_write(w, &s->shape, p, name);
        if (!o->projector)
            r = s->vocab ? synth_vocab_copy(w, s->vocab, err)
                         : synth_vocab_write(w, &s->shape, err);
    }
    if (o->n_shards > 1) {
        gguf_write_u16(w, "split.no", (uint16_t)shard);
        gguf_write_u16(w, "split.count", (uint16_t)o->n_shards);
        gguf_write_i32(w, "split.tensors.count", (int32_t)p->n_tensors);
    }
    return r;
}

/* Writes the data of the tensors of @part. Returns 0 or -errno. */
static int write_tensors(struct gguf_write *w, const struct options *o, const struct synth_plan *p,
                         struct shard part) {
    CLEANUP(freep) uint8_t *chunk = malloc(CHUNK_BYTES);
    int r = chunk ? 0 : -ENOMEM;

    for (uint32_t i = part.begin; r == 0 && i < part.end; i++) {
        const struct synth_tensor *t = &p->tensor[i];

        r = t->role == ROLE_VECTOR     ? write_vector(w, t, o->seed)
            : t->role == ROLE_PASS     ? write_pass(w, t)
            : t->role == ROLE_DIVISORS ? write_divisors(w, t)
            : t->role == ROLE_PICKS    ? write_picks(w, t, o->seed)
                                       : write_matrix(w, t, o->seed, chunk);
        if (r == 0)
            r = gguf_write_tensor_end(w);
    }
    return r;
}

static int write_fd(int fd, const struct options *o, const struct subject *s, struct shard part,
                    struct err *err) {
    const struct synth_plan *p = &s->plan;
    struct gguf_write w;

    assert(part.begin < part.end && part.end <= p->n_tensors);
    gguf_write_init(&w);
    int r = write_keys(&w, o, s, part.number, err);
    for (uint32_t i = part.begin; i < part.end; i++)
        gguf_write_tensor(&w, p->tensor[i].name, p->tensor[i].format, p->tensor[i].n_dims,
                          p->tensor[i].ne);
    if (r == 0)
        r = gguf_write_start(&w, fd);
    if (r == 0)
        r = write_tensors(&w, o, p, part);
    if (r == 0)
        r = gguf_write_finish(&w);
    gguf_write_deinit(&w);
    return r;
}

/* Writes @path under a temporary name first, so that a file of the right name is complete. A device
 * or pipe at @path is written to and not replaced. */
static int write_file(const char *path, const struct options *o, const struct subject *s,
                      struct shard part, struct err *err) {
    CLEANUP(freep) char *temporary = NULL;
    struct stat there;
    bool replace = stat(path, &there) < 0 || S_ISREG(there.st_mode);

    if (asprintf(&temporary, "%s%s", path, replace ? ".part" : "") < 0)
        return -ENOMEM;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int r = write_fd(fd, o, s, part, err);
    if (close(fd) < 0 && r == 0)
        r = -errno;
    if (replace && r == 0 && rename(temporary, path) < 0)
        r = -errno;
    if (replace && r < 0)
        unlink(temporary);
    return r;
}

static uint64_t count_bytes(const struct synth_tensor *t) {
    assert(t->ne[0] % t->format->block == 0);
    return count_values(t) / t->format->block * t->format->block_bytes;
}

/* Cuts the tensors into files of about the same size, none empty. */
static uint32_t end_of_shard(const struct synth_plan *p, uint32_t begin, uint32_t shard,
                             uint32_t n_shards) {
    uint64_t left = 0, sum = 0;
    uint32_t end = begin, after = n_shards - shard - 1;

    assert(begin + after < p->n_tensors);
    if (!after)
        return p->n_tensors;
    for (uint32_t i = begin; i < p->n_tensors; i++)
        left += count_bytes(&p->tensor[i]);
    while (end < p->n_tensors - after && (end == begin || sum < left / (after + 1)))
        sum += count_bytes(&p->tensor[end++]);
    return end;
}

static int synth(const struct options *o, const struct subject *s) {
    const struct synth_plan *plan = &s->plan;
    struct err err = {0};
    int code = CLI_OK, r;
    size_t stem = strlen(o->out);

    if (stem > 5 && strcmp(o->out + stem - 5, ".gguf") == 0)
        stem -= 5;
    if (o->n_shards > plan->n_tensors)
        code = cli_usage("--split %u: there are only %u tensors", o->n_shards, plan->n_tensors);
    struct shard part = {0};
    while (code == CLI_OK && part.number < o->n_shards) {
        CLEANUP(freep) char *path = NULL;

        r = o->n_shards == 1 ? asprintf(&path, "%s", o->out)
                             : asprintf(&path, "%.*s-%05u-of-%05u.gguf", (int)stem, o->out,
                                        part.number + 1, o->n_shards);
        part.end = end_of_shard(plan, part.begin, part.number, o->n_shards);
        if (r >= 0)
            r = write_file(path, o, s, part, &err);
        if (r < 0)
            code = cli_fail_err(path ? path : o->out, &err, r);
        part.begin = part.end;
        part.number++;
    }
    return code;
}

/* Parses the options. Returns -1, or an exit code. */
static int parse(struct options *o, int argc, char **argv) {
    const struct cli_option options[] = {
        {"arch", CLI_TEXT, &o->arch, 0, 0},
        {"shape", CLI_TEXT, &o->shape, 0, 0},
        {"format", CLI_TEXT, &o->format, 0, 0},
        {"seed", CLI_U64, &o->seed, 0, 0x1p64},
        {"projector", CLI_TEXT, &o->projector, 0, 0},
        {"vocab", CLI_TEXT, &o->vocab, 0, 0},
        {"n-vocab", CLI_U32, &o->n_vocab, SYNTH_VOCAB_MIN, SYNTH_VOCAB_MAX},
        {"split", CLI_U32, &o->n_shards, 1, SHARDS_MAX},
        {"o", CLI_TEXT, &o->out, 0, 0},
    };
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args)
        return cli_usage(R"(unexpected argument "%s")", argv[1]);
    if (!o->shape || !o->format || !o->out)
        return cli_usage("--shape, --format and -o are needed");
    if (o->vocab && o->n_vocab)
        return cli_usage("--vocab and --n-vocab exclude each other");
    if (o->projector && (o->arch || o->vocab || o->n_vocab))
        return cli_usage("--projector has no architecture and no vocabulary");
    return -1;
}

/* Determines the content of the file. Returns -1, or an exit code. */
static int plan(const struct options *o, struct subject *s) {
    struct err err = {0};
    int r = 0;

    if (o->projector ? synth_projector_parse(&s->projector, o->projector, o->shape, &err) < 0
                     : synth_shape_parse(&s->shape, o->arch, o->shape, &err) < 0)
        return cli_usage("%s", err.message);
    if (o->n_vocab)
        s->shape.n_vocab = o->n_vocab;
    if (o->vocab && (r = gguf_open(&s->vocab, o->vocab, &err)) == 0)
        r = synth_vocab_count(s->vocab, &s->shape.n_vocab, &err);
    if (r < 0)
        return cli_fail_err(o->vocab, &err, r);
    r = o->projector ? synth_projector_plan(&s->plan, &s->projector, o->format, &err)
                     : synth_plan_new(&s->plan, &s->shape, o->format, &err);
    return r < 0 ? cli_usage("%s", err.message[0] ? err.message : strerror(-r)) : -1;
}

int synth_main(int argc, char **argv) {
    struct options o = {.seed = 1, .n_shards = 1};
    struct subject s = {0};
    int code = parse(&o, argc, argv);

    if (code < 0)
        code = plan(&o, &s);
    if (code < 0)
        code = synth(&o, &s);
    synth_plan_deinit(&s.plan);
    gguf_free(s.vocab);
    return code;
}
