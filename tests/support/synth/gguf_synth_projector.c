/*
 * weft-synth --projector - projector files with random weights: the tensors of each kind that
 * engine/vision reads.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"
#include "tests/support/synth/gguf_synth.h"

enum { TENSORS_MAX = 48 * 129 }; /* 128 layers, and the tensors outside them */

static const struct {
    const char *name;
    struct synth_projector shape;
} shapes[] = {
    {"tiny",
     {.n_layer = 4,
      .n_embd = 32,
      .n_head = 2,
      .n_ff = 80,
      .n_out = 32,
      .patch = 16,
      .side = 8,
      .period = 2}},
    {"qwen3.6-27b",
     {.n_layer = 27,
      .n_embd = 1152,
      .n_head = 16,
      .n_ff = 4304,
      .n_out = 5120,
      .patch = 16,
      .side = 48,
      .period = 8}},
};

static const struct {
    const char *name;
    size_t offset;
    uint32_t min, max;
} fields[] = {
    {"n_layer", offsetof(struct synth_projector, n_layer), 1, 128},
    {"n_embd", offsetof(struct synth_projector, n_embd), 8, 8192},
    {"n_head", offsetof(struct synth_projector, n_head), 1, 256},
    {"n_ff", offsetof(struct synth_projector, n_ff), 1, 65536},
    {"n_out", offsetof(struct synth_projector, n_out), 1, 65536},
    {"patch", offsetof(struct synth_projector, patch), 1, 64},
    {"side", offsetof(struct synth_projector, side), 2, 255},
    {"period", offsetof(struct synth_projector, period), 1, 128},
    {"tile", offsetof(struct synth_projector, tile), 0, 4096},
    {"bounds", offsetof(struct synth_projector, bounds), 0, 1},
    {"n_deep", offsetof(struct synth_projector, n_deep), 0, 128},
    {"rms", offsetof(struct synth_projector, rms), 0, 1},
};

static int set_part(struct synth_projector *s, char *part, bool first, struct err *err) {
    char *value = strchr(part, '=');

    for (size_t i = 0; first && !value && i < ARRAY_SIZE(shapes); i++)
        if (strcmp(shapes[i].name, part) == 0) {
            *s = shapes[i].shape;
            return 0;
        }
    if (!value)
        return err_set(err, 0, NULL,
                       R"(shape of a projector: "%s" is not tiny, qwen3.6-27b or )"
                       "key=value",
                       part);
    *value++ = 0;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (strcmp(fields[i].name, part) == 0) {
            uint32_t *at = (uint32_t *)((char *)s + fields[i].offset);

            if (cli_u32(value, fields[i].min, fields[i].max, at))
                return 0;
            return err_set(err, 0, NULL, "shape of a projector: %s=%s is not in [%u, %u]", part,
                           value, fields[i].min, fields[i].max);
        }
    return err_set(err, 0, NULL, R"(shape of a projector: unknown key "%s")", part);
}

int synth_projector_parse(struct synth_projector *out, const char *kind, const char *text,
                          struct err *err) {
    struct synth_projector s = shapes[0].shape;
    CLEANUP(freep) char *copy = strdup(text);
    char *rest = copy, *part;
    int r = copy ? 0 : -ENOMEM;

    for (bool first = true; r == 0 && (part = strsep(&rest, ",")); first = false)
        r = set_part(&s, part, first, err);
    if (r < 0)
        return r;
    for (int i = 0; i < PROJECTOR_KINDS; i++)
        if (strcmp(projector_kind_name((enum projector_kind)i), kind) == 0) {
            s.kind = (enum projector_kind)i;
            if (s.n_embd % (4 * s.n_head) || s.n_deep > s.n_layer)
                return err_set(err, 0, NULL,
                               "shape of a projector: n_embd is no multiple of "
                               "4 n_head, or n_deep is above n_layer");
            *out = s;
            return 0;
        }
    return err_set(err, 0, NULL, R"(unknown kind of projector "%s")", kind);
}

/* Context of the functions that add tensors. */
struct planner {
    struct synth_plan *plan;
    /* adds bounds of inputs and outputs of all products */
    bool bounds;
    const struct tensor_format *format;
};

static struct synth_tensor *add(struct planner *p, enum synth_role role, uint64_t ne0, uint64_t ne1,
                                const char *fmt, va_list ap) {
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors++];

    assert(p->plan->n_tensors <= TENSORS_MAX);
    *t = (struct synth_tensor){.role = role, .n_dims = ne1 > 1 ? 2 : 1, .ne = {ne0, ne1, 1, 1}};
    vsnprintf(t->name, sizeof(t->name), fmt, ap);
    t->format = tensor_format(TENSOR_F32);
    return t;
}

/* Adds a matrix whose product with a vector of unit size has unit size; rows that are not whole
 * blocks are F16. */
static void matrix(struct planner *p, uint64_t n_in, uint64_t n_out, const char *fmt, ...)
    PRINTF(4, 5);
static void matrix(struct planner *p, uint64_t n_in, uint64_t n_out, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    struct synth_tensor *t = add(p, ROLE_MATRIX, n_in, n_out, fmt, ap);
    va_end(ap);
    t->n_dims = 2;
    t->std = 1 / sqrt((double)n_in);
    t->format = n_in % p->format->block ? tensor_format(TENSOR_F16) : p->format;
}

static void vector(struct planner *p, uint64_t n, double mean, const char *fmt, ...) PRINTF(4, 5);
static void vector(struct planner *p, uint64_t n, double mean, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    struct synth_tensor *t = add(p, ROLE_VECTOR, n, 1, fmt, ap);
    va_end(ap);
    t->mean = mean;
    t->std = 0.1;
}

/* Adds a matrix and its bias, "@prefix.weight" and "@prefix.bias", and the bounds of its values. */
static void linear(struct planner *p, bool bias, uint64_t n_in, uint64_t n_out,
                   const char *prefix) {
    matrix(p, n_in, n_out, "%s.weight", prefix);
    if (bias)
        vector(p, n_out, 0, "%s.bias", prefix);
    for (int i = 0; i < 4 && p->bounds; i++) {
        static const char *const ends[] = {"input_min", "input_max", "output_min", "output_max"};

        vector(p, 1, i % 2 ? 1 : -1, "%s.%s", prefix, ends[i]);
    }
}

static void norm(struct planner *p, bool bias, uint64_t n, const char *prefix) {
    vector(p, n, 1, "%s.weight", prefix);
    if (bias)
        vector(p, n, 0, "%s.bias", prefix);
}

/* Adds the kernel of a convolution over squares: 16-bit floats for block formats, which rows of a
 * square do not fill. */
static void convolution(struct planner *p, uint32_t side, uint64_t n_in, uint64_t n_out,
                        const char *name) {
    matrix(p, side, 1, "%s", name);
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];

    t->n_dims = 4;
    t->ne[1] = side;
    t->ne[2] = n_in;
    t->ne[3] = n_out;
    t->std = 1 / (side * sqrt((double)n_in));
    if (p->format->block > 1)
        t->format = tensor_format(TENSOR_F16);
}

/* Adds the kernel of pixels. */
static void patch(struct planner *p, const struct synth_projector *s, const char *suffix) {
    uint32_t n_in = 27 * s->patch * s->patch; /* a patch of 3 x 3 small ones, with 3 colours */
    char name[48];

    if (s->kind == PROJECTOR_GEMMA4UV) {
        norm(p, true, n_in, "v.patch_norm.1");
        linear(p, true, n_in, s->n_embd, "v.patch_embd");
        norm(p, true, s->n_embd, "v.patch_norm.2");
        norm(p, true, s->n_embd, "v.patch_norm.3");
        return;
    }
    snprintf(name, sizeof(name), "v.patch_embd.weight%s", suffix);
    convolution(p, s->patch, 3, s->n_embd, name);
}

/* Adds the tables of positions: one of side x side positions, or one for columns and one for
 * rows. */
static void positions(struct planner *p, const struct synth_projector *s) {
    bool two = s->kind == PROJECTOR_GEMMA4V || s->kind == PROJECTOR_GEMMA4UV;

    bool none = s->kind == PROJECTOR_GLM4V && s->rms; /* GLM-OCR */
    if (none || s->kind == PROJECTOR_QWEN25VL || s->kind == PROJECTOR_PIXTRAL)
        return;
    vector(p, s->n_embd, 0, "v.position_embd.weight");
    struct synth_tensor *t = &p->plan->tensor[p->plan->n_tensors - 1];
    t->n_dims = two ? 3 : 2;
    t->ne[1] = two ? 16 * s->side : s->side * s->side;
    t->ne[1] += s->kind == PROJECTOR_INTERNVL; /* the position of the class embedding */
    t->ne[2] = two ? 2 : 1;
    t->std = 0.5;
}

/* Returns true if layers have LayerNorms, and an FFN of two products with GELU. */
static bool is_siglip(const struct synth_projector *s) {
    return s->kind == PROJECTOR_GEMMA3 || s->kind == PROJECTOR_LFM2 ||
           s->kind == PROJECTOR_IDEFICS3 || s->kind == PROJECTOR_KIMIVL ||
           s->kind == PROJECTOR_HUNYUANVL;
}

/* Adds a norm of queries or keys, which the larger encoder of internvl has. */
static void norm_over_heads(struct planner *p, const struct synth_projector *s,
                            const char *prefix) {
    if (s->rms)
        norm(p, false, s->n_embd, prefix);
}

static void layer(struct planner *p, const struct synth_projector *s, uint32_t i) {
    bool intern = s->kind == PROJECTOR_INTERNVL && !s->rms;
    bool bias = s->kind == PROJECTOR_QWEN3VL || is_siglip(s) || intern;
    bool glm = s->kind == PROJECTOR_GLM4V;
    bool part_bias = bias || s->kind == PROJECTOR_QWEN25VL, gemma4 = s->kind == PROJECTOR_GEMMA4V;
    uint32_t n = s->n_embd;
    char name[64];

#define NAME(part) (snprintf(name, sizeof(name), "v.blk.%u." part, i), name)
    norm(p, bias, n, NAME("ln1"));
    norm(p, bias, n, NAME("ln2"));
    if (s->kind == PROJECTOR_QWEN3VL || glm)
        linear(p, bias, n, 3 * n, NAME("attn_qkv"));
    else {
        linear(p, part_bias, n, n, NAME("attn_q"));
        linear(p, part_bias, n, n, NAME("attn_k"));
        linear(p, part_bias, n, n, NAME("attn_v"));
    }
    linear(p, bias, n, n, NAME("attn_out"));
    if (gemma4 || (glm && s->rms)) {
        norm(p, false, n / s->n_head, NAME("attn_q_norm"));
        norm(p, false, n / s->n_head, NAME("attn_k_norm"));
    }
    if (gemma4) {
        norm(p, false, n, NAME("attn_post_norm"));
        norm(p, false, n, NAME("ffn_post_norm"));
    }
    if (s->kind == PROJECTOR_INTERNVL) {
        vector(p, n, 0.5, "v.blk.%u.ls1.weight", i);
        vector(p, n, 0.5, "v.blk.%u.ls2.weight", i);
        norm_over_heads(p, s, NAME("attn_q_norm"));
        norm_over_heads(p, s, NAME("attn_k_norm"));
    }
    if (!bias && s->kind != PROJECTOR_INTERNVL)
        linear(p, part_bias, n, s->n_ff, NAME("ffn_gate"));
    linear(p, part_bias, n, s->n_ff, NAME("ffn_up"));
    linear(p, part_bias, s->n_ff, n, NAME("ffn_down"));
#undef NAME
    if (s->kind != PROJECTOR_QWEN3VL || i < s->n_layer - s->n_deep)
        return;
    snprintf(name, sizeof(name), "v.deepstack.%u.norm", i);
    norm(p, true, 4 * n, name);
    snprintf(name, sizeof(name), "v.deepstack.%u.fc1", i);
    linear(p, true, 4 * n, 4 * n, name);
    snprintf(name, sizeof(name), "v.deepstack.%u.fc2", i);
    linear(p, true, 4 * n, s->n_out, name);
}

static void ends(struct planner *p, const struct synth_projector *s) {
    uint32_t n = s->n_embd;

    switch (s->kind) {
    case PROJECTOR_QWEN3VL:
    case PROJECTOR_QWEN25VL:
        norm(p, s->kind == PROJECTOR_QWEN3VL, n, "v.post_ln");
        linear(p, true, 4 * n, 4 * n, "mm.0");
        linear(p, true, 4 * n, s->n_out, "mm.2");
        break;
    case PROJECTOR_GEMMA3:
        norm(p, true, n, "v.post_ln");
        norm(p, false, n, "mm.soft_emb_norm");
        matrix(p, s->n_out, n, "mm.input_projection.weight");
        break;
    case PROJECTOR_GEMMA4V:
        vector(p, n, 0, "v.std_bias");
        vector(p, n, 1, "v.std_scale");
        linear(p, false, n, s->n_out, "mm.input_projection");
        break;
    case PROJECTOR_GEMMA4UV:
        linear(p, false, n, s->n_out, "mm.input_projection");
        break;
    case PROJECTOR_PIXTRAL:
        norm(p, false, n, "mm.input_norm");
        linear(p, false, 4 * n, n, "mm.patch_merger");
        linear(p, false, n, s->n_out, "mm.1");
        linear(p, false, s->n_out, s->n_out, "mm.2");
        vector(p, s->n_out, 0, "v.token_embd.img_break");
        break;
    case PROJECTOR_IDEFICS3:
        norm(p, true, n, "v.post_ln");
        linear(p, false, 4 * n, s->n_out, "mm.model.fc");
        break;
    case PROJECTOR_INTERNVL:
        norm(p, true, 4 * n, "mm.model.mlp.0");
        linear(p, true, 4 * n, 2 * n, "mm.model.mlp.1");
        linear(p, true, 2 * n, s->n_out, "mm.model.mlp.3");
        break;
    case PROJECTOR_GLM4V:
        norm(p, false, n, "v.post_ln");
        convolution(p, 2, n, s->n_out, "mm.patch_merger.weight");
        vector(p, s->n_out, 0, "mm.patch_merger.bias");
        linear(p, false, s->n_out, s->n_out, "mm.model.fc");
        norm(p, true, s->n_out, "mm.post_norm");
        linear(p, false, s->n_out, 3 * n, "mm.gate");
        linear(p, false, s->n_out, 3 * n, "mm.up");
        linear(p, false, 3 * n, s->n_out, "mm.down");
        break;
    case PROJECTOR_HUNYUANVL:
        norm(p, false, n, "mm.pre_norm");
        convolution(p, 2, n, 2 * n, "mm.0.weight");
        vector(p, 2 * n, 0, "mm.0.bias");
        convolution(p, 1, 2 * n, 4 * n, "mm.2.weight");
        vector(p, 4 * n, 0, "mm.2.bias");
        linear(p, true, 4 * n, s->n_out, "mm.model.fc");
        norm(p, false, s->n_out, "mm.post_norm");
        vector(p, s->n_out, 0, "mm.image_begin");
        vector(p, s->n_out, 0, "mm.image_end");
        vector(p, 4 * n, 0, "v.image_newline");
        vector(p, s->n_out, 0, "v.view_seperator");
        break;
    case PROJECTOR_KIMIVL:
        norm(p, true, n, "v.post_ln");
        norm(p, true, n, "mm.input_norm");
        linear(p, true, 4 * n, 4 * n, "mm.1");
        linear(p, true, 4 * n, s->n_out, "mm.2");
        break;
    case PROJECTOR_LFM2:
        norm(p, true, n, "v.post_ln");
        linear(p, true, 4 * n, 2 * n, "mm.1");
        linear(p, true, 2 * n, s->n_out, "mm.2");
        break;
    case PROJECTOR_KINDS:
        break;
    }
}

int synth_projector_plan(struct synth_plan *out, const struct synth_projector *s,
                         const char *format, struct err *err) {
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16, TENSOR_Q8_0};
    static const uint32_t file_types[] = {0, 1, 32, 7};
    struct synth_plan plan = {0};
    struct planner p = {.plan = &plan, .bounds = s->bounds && s->kind == PROJECTOR_GEMMA4V};
    bool glm = s->kind == PROJECTOR_GLM4V;
    bool twice = glm || s->kind == PROJECTOR_QWEN3VL || s->kind == PROJECTOR_QWEN25VL;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcasecmp(tensor_format(types[i])->name, format) == 0) {
            p.format = tensor_format(types[i]);
            plan.file_type = file_types[i];
        }
    if (!p.format)
        return err_set(err, 0, NULL, R"(format "%s": projectors are F32, F16, BF16 or Q8_0)",
                       format);
    plan.tensor = calloc(TENSORS_MAX, sizeof(*plan.tensor));
    if (!plan.tensor)
        return -ENOMEM;
    patch(&p, s, "");
    if (twice)
        patch(&p, s, ".1");
    if (s->kind == PROJECTOR_QWEN3VL || s->kind == PROJECTOR_INTERNVL || glm || is_siglip(s))
        vector(&p, s->n_embd, 0, "v.patch_embd.bias");
    if (glm && !s->rms)
        norm(&p, false, s->n_embd, "v.norm_embd");
    if (s->kind == PROJECTOR_INTERNVL)
        vector(&p, s->n_embd, 0, "v.class_embd");
    positions(&p, s);
    if (s->kind == PROJECTOR_PIXTRAL)
        norm(&p, false, s->n_embd, "v.pre_ln");
    for (uint32_t i = 0; i < s->n_layer && s->kind != PROJECTOR_GEMMA4UV; i++)
        layer(&p, s, i);
    ends(&p, s);
    *out = plan;
    return 0;
}

static void write_colours(struct gguf_write *w, const char *key, double value) {
    gguf_write_array(w, key, GGUF_F32, 3);
    for (int i = 0; i < 3; i++)
        gguf_write_item(w, GGUF_F32, value);
}

void synth_projector_keys(struct gguf_write *w, const struct synth_projector *s,
                          const struct synth_plan *p, const char *name) {
    bool flat = s->kind == PROJECTOR_GEMMA4UV, gemma4 = s->kind == PROJECTOR_GEMMA4V || flat;
    bool gelu = s->kind == PROJECTOR_QWEN3VL || s->kind == PROJECTOR_INTERNVL || is_siglip(s);

    gguf_write_text(w, "general.architecture", "clip");
    gguf_write_text(w, "general.type", "mmproj");
    gguf_write_text(w, "general.name", name);
    gguf_write_u32(w, "general.file_type", p->file_type);
    gguf_write_bool(w, "clip.has_vision_encoder", true);
    gguf_write_text(w, gemma4 ? "clip.vision.projector_type" : "clip.projector_type",
                    projector_kind_name(s->kind));
    gguf_write_u32(w, "clip.vision.projection_dim", s->n_out);
    gguf_write_u32(w, "clip.vision.image_size", s->side * s->patch);
    gguf_write_u32(w, "clip.vision.patch_size", s->patch);
    gguf_write_u32(w, "clip.vision.embedding_length", s->n_embd);
    gguf_write_u32(w, "clip.vision.feed_forward_length", flat ? 0 : s->n_ff);
    gguf_write_u32(w, "clip.vision.block_count", flat ? 0 : s->n_layer);
    gguf_write_u32(w, "clip.vision.attention.head_count", flat ? 0 : s->n_head);
    gguf_write_f32(w, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
    write_colours(w, "clip.vision.image_mean", gemma4 ? 0 : 0.5);
    write_colours(w, "clip.vision.image_std", gemma4 ? 1 : 0.5);
    if (!gemma4)
        gguf_write_bool(w, gelu ? "clip.use_gelu" : "clip.use_silu", true);
    if (s->kind == PROJECTOR_PIXTRAL)
        gguf_write_u32(w, "clip.vision.spatial_merge_size", 2);
    if (s->kind == PROJECTOR_GEMMA3) /* a divisor of the side */
        gguf_write_u32(w, "clip.vision.projector.scale_factor", s->side % 4 ? 1 : 4);
    if (s->kind == PROJECTOR_IDEFICS3 || s->kind == PROJECTOR_INTERNVL ||
        s->kind == PROJECTOR_KIMIVL)
        gguf_write_u32(w, "clip.vision.projector.scale_factor", 2);
    if (s->kind == PROJECTOR_IDEFICS3)
        gguf_write_u32(w, "clip.vision.preproc_image_size", 2 * s->side * s->patch);
    if (s->kind == PROJECTOR_LFM2 && s->tile)
        gguf_write_u32(w, "clip.vision.preproc_image_size", s->tile);
    if (s->kind == PROJECTOR_QWEN25VL)
        gguf_write_u32(w, "clip.vision.n_wa_pattern", s->period);
}
