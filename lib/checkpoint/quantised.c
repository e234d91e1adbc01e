#include "checkpoint/quantised.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mathx.h"
#include "base/printable.h"
#include "base/try.h"
#include "checkpoint/reader.h"

/* Most columns whose groups are read at once. */
#define INDEX_MAX (1u << 20)

/* Returns the quantisation's part of config.json, whose name *key is; NULL: none. */
static yyjson_val *quantised_config(const struct reader *r, const char **key) {
    static const char *const keys[] = {"quantization_config", "compression_config"};

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        yyjson_val *q = json_given(r->config, keys[i]);

        if (!q)
            q = json_given(r->text, keys[i]);
        *key = keys[i];
        if (q)
            return q;
    }
    return NULL;
}

/* Refuses the value of a key of the quantisation's part. */
static int quantised_refuse(const struct reader *r, const char *key, const char *value) {
    return err_set(r->err, 0, NULL, "config.json: quantization_config.%s %s is not supported", key,
                   quoted(value ? value : "").s);
}

/* Reads a whole number of a key, or of @other if it is missing. */
static int64_t quantised_whole(yyjson_val *q, const char *key, const char *other, int64_t def) {
    yyjson_val *v = json_given(q, key);

    if (!v)
        v = json_given(q, other);
    if (!v)
        return def;
    return yyjson_is_int(v) ? yyjson_get_sint(v) : INT64_MIN;
}

/* Reads bits and group of integers; group -1 is a whole row. */
static int quantised_read_group(struct reader *r, yyjson_val *q) {
    struct quantised_rule *rule = &r->rule;
    int64_t bits = quantised_whole(q, "bits", "w_bit", 0);
    int64_t group = quantised_whole(q, "group_size", "q_group_size", -1);
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)bits);
    if (bits != 4 && (bits != 8 || rule->kind == REPACK_AWQ))
        return quantised_refuse(r, "bits", text);
    snprintf(text, sizeof(text), "%lld", (long long)group);
    if (group != -1 && (group < 1 || group > 1 << 20))
        return quantised_refuse(r, "group_size", text);
    rule->bits = (uint32_t)bits;
    rule->group = group < 0 ? UINT32_MAX : (uint32_t)group;
    return 0;
}

static int quantised_read_gptq(struct reader *r, yyjson_val *q) {
    const char *format = json_cstr(json_given(q, "checkpoint_format"));

    if (format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return quantised_refuse(r, "checkpoint_format", format);
    if (yyjson_obj_size(yyjson_obj_get(q, "dynamic")))
        return quantised_refuse(r, "dynamic", "{...}");
    r->rule.kind = REPACK_GPTQ;
    r->rule.symmetric = yyjson_get_bool(yyjson_obj_get(q, "sym"));
    r->rule.act_order = yyjson_get_bool(yyjson_obj_get(q, "desc_act"));
    r->rule.zeros_less_one = !format || strcmp(format, "gptq") == 0;
    return quantised_read_group(r, q);
}

static int quantised_read_awq(struct reader *r, yyjson_val *q) {
    const char *version = json_cstr(json_given(q, "version"));
    yyjson_val *zeros = json_given(q, "zero_point");

    if (version && strcasecmp(version, "gemm") != 0)
        return quantised_refuse(r, "version", version);
    if (zeros && !yyjson_get_bool(zeros))
        return quantised_refuse(r, "zero_point", "false");
    r->rule.kind = REPACK_AWQ;
    return quantised_read_group(r, q);
}

/* FP8: tensors have their scales beside them, but not the size of blocks. */
static int quantised_read_fp8(struct reader *r, yyjson_val *q) {
    yyjson_val *block = json_given(q, "weight_block_size");

    for (size_t i = 0; block && i < 2; i++) {
        yyjson_val *v = yyjson_arr_get(block, i);

        if (!yyjson_is_int(v) || yyjson_get_sint(v) < 1 || yyjson_get_sint(v) > 1 << 20)
            return quantised_refuse(r, "weight_block_size", "");
        r->rule.block[i] = (uint32_t)yyjson_get_sint(v);
    }
    return 0;
}

static int quantised_read_compressed(struct reader *r, yyjson_val *q) {
    static const char formats[] =
        "dense pack-quantized float-quantized int-quantized naive-quantized nvfp4-pack-quantized "
        "mxfp4-pack-quantized mixed-precision";
    const char *format = json_cstr(json_given(q, "format"));
    yyjson_val *sparse = json_given(json_given(q, "sparsity_config"), "format");

    if (format && !json_is(yyjson_obj_get(q, "format"), formats))
        return quantised_refuse(r, "format", format);
    if (sparse && !json_is(sparse, "dense"))
        return quantised_refuse(r, "sparsity_config.format", json_cstr(sparse));
    if (yyjson_obj_size(json_given(q, "transform_config")))
        return quantised_refuse(r, "transform_config", "{...}");
    return 0;
}

static int quantised_read_modelopt(struct reader *r, yyjson_val *q) {
    yyjson_val *algorithm = json_given(q, "quant_algo");

    if (algorithm && !json_is(algorithm, "FP8 NVFP4 FP8_PER_CHANNEL_PER_TOKEN FP8_PB_WO"))
        return quantised_refuse(r, "quant_algo", json_cstr(algorithm));
    return 0;
}

/* MXFP4 of fused experts, whose tensors say all (layouts.c). */
static int quantised_read_mxfp4(struct reader *r, yyjson_val *q) {
    (void)r;
    (void)q;
    return 0;
}

/* Methods by their names in config.json. */
static const struct {
    const char *name;
    int (*read)(struct reader *r, yyjson_val *q);
} methods[] = {
    {"gptq", quantised_read_gptq},
    {"awq", quantised_read_awq},
    {"fp8", quantised_read_fp8},
    {"fbgemm_fp8", quantised_read_fp8},
    {"compressed-tensors", quantised_read_compressed},
    {"mxfp4", quantised_read_mxfp4},
    {"modelopt", quantised_read_modelopt},
    {"modelopt_fp4", quantised_read_modelopt},
};

int quantised_read_rule(struct reader *r) {
    const char *key;
    yyjson_val *q = quantised_config(r, &key);
    const char *method = json_cstr(yyjson_obj_get(q, "quant_method"));

    r->rule = (struct quantised_rule){.block = {128, 128}};
    if (!method && json_given(r->config, "quantization"))
        return err_set(r->err, 0, NULL,
                       "config.json: quantization is that of MLX, which is not supported: take the "
                       "original model or another quantisation of it");
    if (!q)
        return 0;
    for (size_t i = 0; method && i < ARRAY_SIZE(methods); i++)
        if (strcmp(methods[i].name, method) == 0)
            return methods[i].read(r, q);
    return err_set(r->err, 0, NULL,
                   "config.json: %s.quant_method %s is not supported; awq, compressed-tensors, "
                   "fp8, gptq, modelopt and mxfp4 are",
                   key, quoted(method ? method : "").s);
}

/* Ends of names of tensors that have the codes. */
static const char *const codes_of[] = {".qweight", ".weight_packed", ".weight"};
/* Those of tensors beside them. Scales of activations and of the KV cache are left out: both keep
 * their values here. */
static const char *const companions[] = {
    ".weight_scale",   ".weight_scale_inv",
    ".weight_scale_2", ".weight_global_scale",
    ".weight_shape",   ".weight_g_idx",
    ".scales",         ".weight_zero_point",
    ".qzeros",         ".g_idx",
    ".input_scale",    ".input_global_scale",
    ".k_scale",        ".v_scale",
    ".q_scale",        ".activation_scale",
};

/* Returns true if @name ends in @end. */
static bool quantised_ends_in(const char *name, const char *end) {
    size_t n = strlen(name), len = strlen(end);

    return n > len && strcmp(name + n - len, end) == 0;
}

/* Returns the tensor @base@end, where @base has @len bytes; NULL: none. */
static const struct st_tensor *quantised_beside(const struct reader *r, const char *base, int len,
                                                const char *end) {
    char name[ST_NAME_MAX + 1];
    int n = snprintf(name, sizeof(name), "%.*s%s", len, base, end);

    return (size_t)n < sizeof(name) ? st_find(&r->list, name) : NULL;
}

/* Ends of names of tensors beside a stack of matrices, whose name they follow. */
static const char *const stack_companions[] = {"_scale_inv", "_scale", "_activation_scale",
                                               "_input_scale"};

/* Returns true if @t has codes of a stack of matrices: [matrices, rows, columns]. */
static bool quantised_is_stack(const struct st_tensor *t) {
    return t->type == ST_F8_E4M3 && t->n_dims == 3;
}

/* Returns true if values of @type stand for themselves. */
static bool quantised_is_plain(enum st_type type) {
    return type == ST_F32 || type == ST_F16 || type == ST_BF16;
}

/* Returns true if @t stands beside the codes of a stack, also of one whose format is refused. */
static bool quantised_is_beside_stack(const struct reader *r, const struct st_tensor *t) {
    for (size_t i = 0; i < ARRAY_SIZE(stack_companions); i++) {
        if (!quantised_ends_in(t->name, stack_companions[i]))
            continue;
        int len = (int)(strlen(t->name) - strlen(stack_companions[i]));
        const struct st_tensor *codes = quantised_beside(r, t->name, len, "");

        if (codes && codes->n_dims == 3 && !quantised_is_plain(codes->type))
            return true;
    }
    return false;
}

/* Returns true if @t stands beside the codes of a matrix. */
static bool quantised_is_companion(const struct reader *r, const struct st_tensor *t) {
    if (quantised_is_beside_stack(r, t))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(companions); i++) {
        if (!quantised_ends_in(t->name, companions[i]))
            continue;
        int len = (int)(strlen(t->name) - strlen(companions[i]));
        bool cache = companions[i][2] == '_';

        for (size_t k = 0; k < ARRAY_SIZE(codes_of); k++)
            if (quantised_beside(r, t->name, len, codes_of[k]))
                return true;
        /* self_attn.k_scale */
        return cache && quantised_beside(r, t->name, len, ".k_proj.weight");
    }
    return false;
}

/* A matrix that is being read. */
struct quantised_search {
    struct reader *r;
    const struct st_tensor *t;
    /* bytes of the name before its end */
    int base;
    struct quantised *out;
};

static int quantised_bad(const struct quantised_search *s, const struct st_tensor *t,
                         const char *what) {
    return err_set(s->r->err, 0, NULL, "%s: tensor '%s' %s", s->r->file[t->file].name, t->name,
                   what);
}

/* Finds the tensor with end @end beside the codes. */
static int quantised_need(const struct quantised_search *s, const char *end,
                          const struct st_tensor **out) {
    *out = quantised_beside(s->r, s->t->name, s->base, end);
    if (!*out)
        return err_set(s->r->err, 0, NULL, "%s: tensor '%s' has no '%.*s%s'",
                       s->r->file[s->t->file].name, s->t->name, s->base, s->t->name, end);
    return 0;
}

/* Checks that @t has @n0 x @n1 values. */
static int quantised_check(const struct quantised_search *s, const struct st_tensor *t, uint64_t n0,
                           uint64_t n1) {
    char text[80];

    if (t->n_dims == 2 && t->dim[0] == n0 && t->dim[1] == n1)
        return 0;
    snprintf(text, sizeof(text), "is not of shape [%llu, %llu]", (unsigned long long)n0,
             (unsigned long long)n1);
    return quantised_bad(s, t, text);
}

static int quantised_check_type(const struct quantised_search *s, const struct st_tensor *t,
                                enum st_type type) {
    return t->type == type ? 0 : quantised_bad(s, t, "has a type that is not supported there");
}

/* Sets the type of scales. */
static int quantised_scale_type(const struct quantised_search *s, const struct st_tensor *t) {
    uint32_t *type = &s->out->how.scale_type;

    s->out->part[REPACK_SCALES] = t;
    switch (t->type) {
    case ST_F16:
        *type = TENSOR_F16;
        return 0;
    case ST_BF16:
        *type = TENSOR_BF16;
        return 0;
    case ST_F32:
        *type = TENSOR_F32;
        return 0;
    default:
        return quantised_bad(s, t, "has a type that is not supported for scales");
    }
}

/* Reads @n bytes of @t at offset 0. */
static int quantised_pread(const struct quantised_search *s, const struct st_tensor *t, void *out,
                           size_t n) {
    if (t->n_bytes < n)
        return quantised_bad(s, t, "is too short");
    ssize_t got = pread(s->r->file[t->file].fd, out, n, (off_t)t->offset);
    return got == (ssize_t)n ? 0 : quantised_bad(s, t, "cannot be read");
}

/* Finds how rows and columns share the scales @t, [], [1], [rows], [rows, 1], [rows, groups] or
 * blocks. */
static int quantised_share(const struct quantised_search *s, const struct st_tensor *t,
                           const uint32_t block[2]) {
    struct quantised *q = s->out;
    uint64_t n = 1, n0 = t->n_dims ? t->dim[0] : 1, n1 = t->n_dims > 1 ? t->dim[1] : 1;
    uint64_t rows = (q->n_rows + block[0] - 1) / block[0];
    uint64_t columns = (q->n_in + block[1] - 1) / block[1];

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (size_mul(n, t->dim[i], &n))
            return quantised_bad(s, t, "is too large");
    q->how.group = (uint32_t)q->n_in;
    q->how.group_rows = (uint32_t)q->n_rows;
    if (n == 1)
        return 0;
    if (t->n_dims <= 2 && n0 == q->n_rows && n1 > 0 && q->n_in % n1 == 0) {
        q->how.group_rows = 1;
        q->how.group = (uint32_t)(q->n_in / n1);
        return 0;
    }
    if (t->n_dims == 2 && n0 == rows && n1 == columns) {
        q->how.group_rows = block[0];
        q->how.group = block[1];
        return 0;
    }
    return quantised_bad(s, t, "has a shape that does not fit the matrix");
}

/* Sets the sides of the matrix. */
static int quantised_sides(const struct quantised_search *s, uint64_t n_rows, uint64_t n_in) {
    if (n_rows < 1 || n_in < 1 || n_rows > 1 << 28 || n_in > 1 << 28)
        return quantised_bad(s, s->t, "has a shape that is not supported");
    s->out->n_rows = n_rows;
    s->out->n_in = n_in;
    return 0;
}

/* FP8 and integers of 8 bits: [rows, columns]. */
static int quantised_read_bytes(const struct quantised_search *s) {
    const struct st_tensor *scale =
        quantised_beside(s->r, s->t->name, s->base, ".weight_scale_inv");

    if (!scale)
        TRY(quantised_need(s, ".weight_scale", &scale));
    if (quantised_beside(s->r, s->t->name, s->base, ".weight_zero_point"))
        return quantised_bad(s, s->t, "has zero points, which are not supported there");
    TRY(quantised_sides(s, s->t->dim[0], s->t->dim[1]));
    TRY(quantised_scale_type(s, scale));
    s->out->how.kind = s->t->type == ST_I8 ? REPACK_INT8 : REPACK_FP8;
    s->out->how.bits = 8;
    if (s->t->type == ST_I8 && scale->type == ST_F32)
        return quantised_bad(s, scale, "has type F32, which is not supported for integers");
    return quantised_share(s, scale, s->r->rule.block);
}

/* A stack of FP8: [matrices, rows, columns], of which each has scales of its own. */
static int quantised_read_stack(const struct quantised_search *s) {
    const struct st_tensor *scale =
        quantised_beside(s->r, s->t->name, s->base, stack_companions[0]);
    struct quantised *q = s->out;

    if (!scale)
        TRY(quantised_need(s, stack_companions[1], &scale));
    TRY(quantised_sides(s, s->t->dim[1], s->t->dim[2]));
    TRY(quantised_scale_type(s, scale));
    q->how.kind = REPACK_FP8;
    q->how.bits = 8;
    q->n_stack = s->t->dim[0];
    if (q->n_stack < 1 || q->n_stack > 1 << 16)
        return quantised_bad(s, s->t, "has a shape that is not supported");
    if (scale->n_dims < 1 || scale->dim[0] != q->n_stack)
        return quantised_bad(s, scale, "has a shape that does not fit the matrices");
    struct st_tensor one = *scale;
    one.n_dims--;
    memmove(one.dim, one.dim + 1, one.n_dims * sizeof(one.dim[0]));
    return quantised_share(s, &one, s->r->rule.block);
}

/* MXFP4 and NVFP4: [rows, columns / 2]. */
static int quantised_read_fp4(const struct quantised_search *s) {
    struct quantised *q = s->out;
    const struct st_tensor *scale, *factor;

    TRY(quantised_need(s, ".weight_scale", &scale));
    TRY(quantised_sides(s, s->t->dim[0], 2 * s->t->dim[1]));
    q->part[REPACK_SCALES] = scale;
    q->how.scale_type = TENSOR_F32;
    q->how.group = q->how.group_rows = 1;
    if (scale->type == ST_U8 || scale->type == ST_F8_E8M0) {
        q->how.kind = REPACK_MXFP4;
        return quantised_check(s, scale, q->n_rows, q->n_in / 32);
    }
    TRY(quantised_check_type(s, scale, ST_F8_E4M3));
    TRY(quantised_check(s, scale, q->n_rows, q->n_in / 16));
    q->how.kind = REPACK_NVFP4;
    factor = quantised_beside(s->r, s->t->name, s->base, ".weight_scale_2");
    bool divides = !factor;
    if (divides)
        TRY(quantised_need(s, ".weight_global_scale", &factor));
    TRY(quantised_check_type(s, factor, ST_F32));
    uint32_t word = 0;
    TRY(quantised_pread(s, factor, &word, sizeof(word)));
    q->factor = mx_float_of(le32toh(word));
    if (divides)
        q->factor = 1 / q->factor;
    if (factor->n_bytes != 4 || !(q->factor > 0 && q->factor < 3e38f))
        return quantised_bad(s, factor, "is no positive number");
    return 0;
}

/* Reads the groups of columns @index, and leaves them out if they follow each other. */
static int quantised_read_index(const struct quantised_search *s, const struct st_tensor *index) {
    struct quantised *q = s->out;
    uint64_t n_groups = (q->n_in + q->how.group - 1) / q->how.group;
    bool ordered = true;

    TRY(quantised_check_type(s, index, ST_I32));
    if (index->n_bytes != 4 * q->n_in || q->n_in > INDEX_MAX)
        return quantised_bad(s, index, "has not one number for each column");
    CLEANUP(freep) uint32_t *group = malloc(index->n_bytes);
    if (!group)
        return -ENOMEM;
    TRY(quantised_pread(s, index, group, index->n_bytes));
    for (uint64_t k = 0; k < q->n_in; k++) {
        uint32_t g = le32toh(group[k]);

        if (g >= n_groups)
            return quantised_bad(s, index, "names a group that is not there");
        ordered &= g == k / q->how.group;
    }
    q->how.indexed = !ordered;
    q->part[REPACK_INDEX] = ordered ? NULL : index;
    return 0;
}

/* GPTQ, [columns * bits / 32, rows], and AWQ, [columns, rows / 8]. */
static int quantised_read_words(const struct quantised_search *s) {
    const struct quantised_rule *rule = &s->r->rule;
    struct quantised *q = s->out;
    const struct st_tensor *scales, *zeros, *index;

    if (!rule->kind)
        return quantised_bad(s, s->t, "needs quantization_config of gptq or awq in config.json");
    TRY(quantised_sides(s, s->t->dim[1], s->t->dim[0]));
    if (rule->kind == REPACK_AWQ)
        TRY(quantised_sides(s, s->t->dim[1] * 8, s->t->dim[0]));
    else
        TRY(quantised_sides(s, s->t->dim[1], s->t->dim[0] * 32 / rule->bits));
    q->how.kind = rule->kind;
    q->how.bits = rule->bits;
    q->how.group = (uint32_t)MIN((uint64_t)rule->group, q->n_in);
    q->how.group_rows = 1;
    uint64_t n_groups = (q->n_in + q->how.group - 1) / q->how.group;
    TRY(quantised_need(s, ".scales", &scales));
    TRY(quantised_scale_type(s, scales));
    TRY(quantised_check(s, scales, n_groups, q->n_rows));
    if (scales->type == ST_F32)
        return quantised_bad(s, scales, "has type F32, which is not supported for integers");
    if (!rule->symmetric) {
        TRY(quantised_need(s, ".qzeros", &zeros));
        TRY(quantised_check_type(s, zeros, ST_I32));
        TRY(quantised_check(s, zeros, n_groups, (q->n_rows * rule->bits + 31) / 32));
        q->how.zeros = rule->zeros_less_one ? 2 : 1;
        q->part[REPACK_ZEROS] = zeros;
    }
    if (!rule->act_order)
        return 0;
    TRY(quantised_need(s, ".g_idx", &index));
    return quantised_read_index(s, index);
}

/* compressed-tensors: [rows, columns * bits / 32]; weight_shape says how many columns there are. */
static int quantised_read_packed(const struct quantised_search *s) {
    struct quantised *q = s->out;
    const struct st_tensor *shape, *scales, *zeros, *index;
    uint64_t side[2] = {0};

    TRY(quantised_need(s, ".weight_shape", &shape));
    size_t each = st_type_bytes(shape->type);
    if (shape->n_bytes != 2 * each || (each != 4 && each != 8))
        return quantised_bad(s, shape, "is not two integers");
    for (size_t i = 0; i < 2; i++) {
        uint8_t bytes[16];

        TRY(quantised_pread(s, shape, bytes, 2 * each));
        memcpy(&side[i], bytes + i * each, each);
        side[i] = le64toh(side[i]);
    }
    TRY(quantised_sides(s, side[0], side[1]));
    q->how.kind = REPACK_PACKED;
    q->how.bits = (q->n_in + 7) / 8 == s->t->dim[1] ? 4 : 8;
    TRY(quantised_check(s, s->t, q->n_rows, (q->n_in * q->how.bits + 31) / 32));
    TRY(quantised_need(s, ".weight_scale", &scales));
    TRY(quantised_scale_type(s, scales));
    if (scales->type == ST_F32)
        return quantised_bad(s, scales, "has type F32, which is not supported for integers");
    TRY(quantised_share(s, scales, (uint32_t[2]){1, (uint32_t)q->n_in}));
    if (q->how.group_rows != 1 && q->n_rows != 1)
        return quantised_bad(s, scales, "has a shape that does not fit the matrix");
    zeros = quantised_beside(s->r, s->t->name, s->base, ".weight_zero_point");
    if (zeros) {
        TRY(quantised_check_type(s, zeros, ST_I32));
        TRY(quantised_check(s, zeros, (q->n_rows * q->how.bits + 31) / 32, q->n_in / q->how.group));
        q->how.zeros = 1;
        q->part[REPACK_ZEROS] = zeros;
    }
    index = quantised_beside(s->r, s->t->name, s->base, ".weight_g_idx");
    return index ? quantised_read_index(s, index) : 0;
}

/* Reads the matrix whose codes are s->t. Returns QUANTISED_NO if its values stand for
 * themselves. */
static int quantised_read_matrix(const struct quantised_search *s) {
    bool flat = s->t->n_dims == 2, words = s->t->type == ST_I32;
    const char *end = s->t->name + s->base;

    if (!flat || quantised_is_plain(s->t->type))
        return QUANTISED_NO;
    if (s->t->type == ST_F8_E4M3 || s->t->type == ST_I8)
        TRY(quantised_read_bytes(s));
    else if (s->t->type == ST_U8 && strcmp(end, ".qweight") != 0)
        TRY(quantised_read_fp4(s));
    else if (words && strcmp(end, ".qweight") == 0)
        TRY(quantised_read_words(s));
    else if (words && strcmp(end, ".weight_packed") == 0)
        TRY(quantised_read_packed(s));
    else
        return QUANTISED_NO;
    return QUANTISED_MATRIX;
}

/* Checks that each part has the bytes that its layout has. */
static int quantised_check_parts(const struct quantised_search *s) {
    uint64_t bytes[REPACK_PARTS];

    if (repack_sizes(&s->out->how, s->out->n_rows, s->out->n_in, bytes) < 0)
        return quantised_bad(s, s->t, "has a shape that is not supported for its format");
    for (int i = 0; i < REPACK_PARTS; i++) {
        const struct st_tensor *t = s->out->part[i];

        if (size_mul(bytes[i], MAX(s->out->n_stack, 1u), &bytes[i]) ||
            (t ? t->n_bytes : 0) != bytes[i])
            return quantised_bad(s, t ? t : s->t, "has not the size that its shape requires");
    }
    return 0;
}

int quantised_find(struct reader *r, const struct st_tensor *t, struct quantised *out) {
    struct quantised_search s = {.r = r, .t = t, .out = out};
    size_t k = 0;

    if (quantised_is_companion(r, t))
        return QUANTISED_COMPANION;
    *out = (struct quantised){.part = {t}};
    if (quantised_is_stack(t)) {
        s.base = (int)strlen(t->name);
        snprintf(out->name, sizeof(out->name), "%s", t->name);
        TRY(quantised_read_stack(&s));
        TRY(quantised_check_parts(&s));
        return QUANTISED_MATRIX;
    }
    while (k < ARRAY_SIZE(codes_of) && !quantised_ends_in(t->name, codes_of[k]))
        k++;
    if (k == ARRAY_SIZE(codes_of))
        return QUANTISED_NO;
    s.base = (int)(strlen(t->name) - strlen(codes_of[k]));
    snprintf(out->name, sizeof(out->name), "%.*s.weight", s.base, t->name);
    int result = quantised_read_matrix(&s);
    if (result == QUANTISED_MATRIX)
        TRY(quantised_check_parts(&s));
    return result;
}

int quantised_slice(const struct quantised *q, uint64_t from, uint64_t n, struct repack *how,
                    struct gguf_piece part[REPACK_PARTS]) {
    uint64_t at[REPACK_PARTS], bytes[REPACK_PARTS], matrix = from / q->n_rows;

    TRY(repack_sizes(&q->how, q->n_rows, q->n_in, bytes));
    TRY(repack_slice(&q->how, q->n_rows, q->n_in, from % q->n_rows, n, how, at));
    for (int i = 0; i < REPACK_PARTS; i++) {
        const struct st_tensor *t = q->part[i];

        part[i] = (struct gguf_piece){0};
        if (t)
            part[i] = (struct gguf_piece){t->file, t->offset + matrix * bytes[i] + at[i]};
    }
    return 0;
}

int quantised_read_parts(const struct reader *r, const struct quantised *q,
                         struct quantised_parts *out) {
    *out = (struct quantised_parts){.t = {.ne = {q->n_in, q->n_rows, 1, 1},
                                          .n_dims = 2,
                                          .piece = out->part,
                                          .piece_rows = q->n_rows,
                                          .repack = &q->how}};
    for (int i = 0; i < REPACK_PARTS; i++) {
        uint8_t *bytes;

        if (!q->part[i])
            continue;
        TRY(reader_bytes(r, q->part[i], &bytes));
        out->part[i] = bytes;
    }
    return 0;
}

void quantised_free_parts(struct quantised_parts *p) {
    for (int i = 0; i < REPACK_PARTS; i++)
        free((uint8_t *)p->part[i]);
}

enum tensor_type quantised_halves(const struct quantised *q) {
    if (q->how.kind == REPACK_FP8 || q->how.kind == REPACK_MXFP4)
        return TENSOR_BF16;
    return TENSOR_F16;
}

void quantised_store_halves(const struct quantised *q, const float *value, uint8_t *out) {
    bool brain = quantised_halves(q) == TENSOR_BF16;

    for (uint64_t k = 0; k < q->n_in; k++) {
        float v = value[k] * (q->factor ? q->factor : 1);
        uint16_t half = mx_float_to_half(v);

        if (brain)
            half = mx_float_to_bf16(v);
        half = htole16(half);
        memcpy(out + 2 * k, &half, sizeof(half));
    }
}
