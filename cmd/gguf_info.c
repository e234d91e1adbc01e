/* weft-gguf info - prints the contents of a model file, for people and as JSON. All text from the
 * file is escaped. */

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/gguf.h"
#include "base/gguf_override.h"
#include "base/printable.h"
#include "base/try.h"
#include "base/util.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"
#include "cmd/gguf_nearest.h"
#include "cmd/kv_option.h"
#include "cmd/model_fit.h"
#include "vision/projector.h"

static const char usage[] =
    "usage: weft-gguf info [--json] [options] FILE\n"
    "Prints metadata, tensors and sizes, and whether and how this machine can serve it.\n"
    "  --memory BYTES     assume this much free memory (as 16G)\n"
    "  --max-context N    size for contexts of N tokens\n"
    "  --kv T[,T]         format of keys and values, or of each: " KV_TYPE_NAMES " (f16)\n"
    "  --devices LIST     size for these CUDA devices (as 0,1)\n"
    "  --fetch-experts    the device fetches experts that it has no room for\n"
    "  --draft-model FILE serve it with this draft model or block, not the model's own\n"
    "  --projector FILE   serve it with this projector (mmproj)\n"
    "  --override-kv LIST replace values of the file: KEY=TYPE:VALUE,... with the types int,\n"
    "                     float, bool and str\n"
    "  --ops BACKEND      print instead the operations of a step, and which of them BACKEND\n"
    "                     (reference, cpu or cuda) computes together\n"
    "  --no-fit           print only the content of the file\n"
    "  --nearest          print only which known architectures are nearest, and the differences\n";

#define SHOW_CHARS 72u /* most characters of a string that the table shows */
#define SHOW_ITEMS 6u  /* most elements of an array that the table shows */

struct total {
    const struct tensor_format *format;
    uint64_t n_tensors, n_values, n_bytes;
};

#define TOTALS_MAX 32u

static const char *type_name(enum gguf_type type) {
    static const char *const names[] = {
        [GGUF_U8] = "u8",         [GGUF_I8] = "i8",       [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",       [GGUF_I32] = "i32",     [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_STRING] = "string", [GGUF_ARRAY] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
        [GGUF_F64] = "f64",
    };

    assert(type < ARRAY_SIZE(names) && names[type]); /* the reader accepts no other types */
    return names[type];
}

static uint64_t count_values(const struct tensor *t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

/* Sums sizes by format, in the order of first use. Returns the number of formats. */
static size_t sum_formats(const struct gguf *g, struct total *out) {
    size_t n = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        size_t k = 0;

        while (k < n && out[k].format != t->format)
            k++;
        if (k == n) {
            assert(n < TOTALS_MAX);
            out[n++] = (struct total){.format = t->format};
        }
        out[k].n_tensors++;
        out[k].n_values += count_values(t);
        out[k].n_bytes += t->n_bytes;
    }
    return n;
}

/* Prints @s in double quotes and escaped; a long text is cut. */
static void info_print_quoted(struct gguf_str s) {
    char one[PRINTABLE_MAX];
    size_t shown = 0, n_one;

    putchar('"');
    for (size_t i = 0; i < s.len; shown++) {
        if (shown == SHOW_CHARS) {
            printf("\"... (%zu bytes)", s.len);
            return;
        }
        if (s.data[i] == '"' || s.data[i] == '\\')
            putchar('\\');
        i += printable_next(s.data + i, s.len - i, one, &n_one);
        fwrite(one, 1, n_one, stdout);
    }
    putchar('"');
}

/* Prints length and first items of an array. */
static void print_array(const struct gguf_array *a) {
    uint64_t n = gguf_array_n(a), shown = MIN(n, (uint64_t)SHOW_ITEMS);

    printf("[%" PRIu64 "] ", n);
    for (uint64_t i = 0; i < shown; i++) {
        if (i)
            printf(", ");
        if (gguf_array_type(a) == GGUF_STRING)
            info_print_quoted(gguf_array_str(a, i));
        else
            printf("%g", gguf_array_num(a, i));
    }
    puts(n > shown ? ", ..." : "");
}

static void print_value(const struct gguf *g, const char *key, enum gguf_type type) {
    struct gguf_str text;
    uint32_t u32;
    float f32;
    bool flag;

    if (type == GGUF_ARRAY) {
        print_array(gguf_array(g, key));
        return;
    }
    if (gguf_string(g, key, &text) == 0)
        info_print_quoted(text);
    else if (type == GGUF_BOOL && gguf_bool(g, key, &flag) == 0)
        fputs(flag ? "true" : "false", stdout);
    else if ((type == GGUF_F32 || type == GGUF_F64) && gguf_f32(g, key, &f32) == 0)
        printf("%g", (double)f32);
    else if (gguf_u32(g, key, &u32) == 0)
        printf("%u", u32);
    else
        fputs("(not in the range of u32)", stdout);
    putchar('\n');
}

/* Copies a key to a C string; the reader bounds the length of keys. */
static void key_name(struct gguf_str key, char out[1100]) {
    snprintf(out, 1100, "%.*s", (int)key.len, key.data);
}

static void print_table(const struct gguf *g, const char *path) {
    struct total totals[TOTALS_MAX];
    size_t n_totals = sum_formats(g, totals);
    uint64_t n_values = 0;
    char name[1100];

    printf("%s: GGUF version %u, %u file%s, %.1f MiB\n\nmetadata (%" PRIu64 ")\n", path,
           gguf_version(g), gguf_n_shards(g), gguf_n_shards(g) == 1 ? "" : "s",
           (double)gguf_bytes(g) / 0x1p20, gguf_n_kv(g));
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        enum gguf_type type;

        key_name(gguf_key(g, i, &type), name);
        printf("  %-44s %-6s ", name, type_name(type));
        print_value(g, name, type);
    }
    printf("\ntensors (%" PRIu64 ")\n", gguf_n_tensors(g));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        int len = snprintf(name, sizeof(name), "%" PRIu64, t->ne[0]);

        for (uint32_t d = 1; d < t->n_dims; d++)
            len += snprintf(name + len, sizeof(name) - (size_t)len, " x %" PRIu64, t->ne[d]);
        printf("  %-44s %-8s %-22s %12zu\n", t->name, t->format->name, name, t->n_bytes);
    }
    printf("\nformats\n");
    for (size_t i = 0; i < n_totals; i++) {
        const struct total *t = &totals[i];

        n_values += t->n_values;
        printf("  %-8s %6" PRIu64 " tensors %14" PRIu64 " values %12.2f MiB  %6.3f bits a value\n",
               t->format->name, t->n_tensors, t->n_values, (double)t->n_bytes / 0x1p20,
               t->n_values ? 8.0 * (double)t->n_bytes / (double)t->n_values : 0.0);
    }
    printf("  %-8s %6" PRIu64 " tensors %14" PRIu64 " values\n", "all", gguf_n_tensors(g),
           n_values);
}

/* Converts a string of the file to valid UTF-8 for JSON: invalid bytes become U+FFFD. */
static yyjson_mut_val *info_text_value(yyjson_mut_doc *d, struct gguf_str s) {
    CLEANUP(freep) char *out = malloc(3 * s.len + 1);
    size_t len = 0, n;
    uint32_t c;

    if (!out)
        return NULL;
    for (size_t i = 0; i < s.len; i += MAX(n, (size_t)1)) {
        n = utf8_sequence(s.data + i, s.len - i, &c);
        memcpy(out + len, n ? s.data + i : "\xEF\xBF\xBD", n ? n : 3);
        len += n ? n : 3;
    }
    return yyjson_mut_strncpy(d, out, len);
}

static yyjson_mut_val *json_value(yyjson_mut_doc *d, const struct gguf *g, const char *key,
                                  enum gguf_type type) {
    struct gguf_str text;
    uint32_t u32;
    float f32;
    bool flag;

    if (type == GGUF_ARRAY) {
        const struct gguf_array *a = gguf_array(g, key);
        yyjson_mut_val *list = yyjson_mut_arr(d);

        for (uint64_t i = 0; i < gguf_array_n(a); i++) {
            int64_t v;

            if (gguf_array_type(a) == GGUF_STRING)
                yyjson_mut_arr_append(list, info_text_value(d, gguf_array_str(a, i)));
            else if (gguf_array_type(a) == GGUF_BOOL)
                yyjson_mut_arr_add_sint(d, list, gguf_array_num(a, i) != 0);
            else if (gguf_array_type(a) != GGUF_F32 && gguf_array_read(a, GGUF_I64, i, 1, &v))
                yyjson_mut_arr_add_sint(d, list, v);
            else
                yyjson_mut_arr_add_real(d, list, gguf_array_num(a, i));
        }
        return list;
    }
    if (gguf_string(g, key, &text) == 0)
        return info_text_value(d, text);
    if (type == GGUF_BOOL && gguf_bool(g, key, &flag) == 0)
        return yyjson_mut_bool(d, flag);
    if ((type == GGUF_F32 || type == GGUF_F64) && gguf_f32(g, key, &f32) == 0)
        return yyjson_mut_real(d, (double)f32);
    if (gguf_u32(g, key, &u32) == 0)
        return yyjson_mut_uint(d, u32);
    return yyjson_mut_null(d);
}

static void json_tensors(yyjson_mut_doc *d, yyjson_mut_val *root, const struct gguf *g) {
    yyjson_mut_val *tensors = yyjson_mut_obj_add_arr(d, root, "tensors");
    yyjson_mut_val *formats;
    struct total totals[TOTALS_MAX];
    size_t n_totals = sum_formats(g, totals);

    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        yyjson_mut_val *v = yyjson_mut_arr_add_obj(d, tensors), *ne;

        yyjson_mut_obj_add_str(d, v, "name", t->name);
        yyjson_mut_obj_add_str(d, v, "format", t->format->name);
        ne = yyjson_mut_obj_add_arr(d, v, "ne");
        for (uint32_t k = 0; k < t->n_dims; k++)
            yyjson_mut_arr_add_uint(d, ne, t->ne[k]);
        yyjson_mut_obj_add_uint(d, v, "bytes", t->n_bytes);
        yyjson_mut_obj_add_uint(d, v, "shard", t->shard);
        yyjson_mut_obj_add_uint(d, v, "offset", t->file_offset);
    }
    formats = yyjson_mut_obj_add_arr(d, root, "formats");
    for (size_t i = 0; i < n_totals; i++) {
        yyjson_mut_val *v = yyjson_mut_arr_add_obj(d, formats);

        yyjson_mut_obj_add_str(d, v, "format", totals[i].format->name);
        yyjson_mut_obj_add_uint(d, v, "tensors", totals[i].n_tensors);
        yyjson_mut_obj_add_uint(d, v, "values", totals[i].n_values);
        yyjson_mut_obj_add_uint(d, v, "bytes", totals[i].n_bytes);
    }
}

/* Returns true for a projector (mmproj), which is served with a text model only. */
static bool is_projector(const struct gguf *g) {
    struct gguf_str arch;

    return gguf_string(g, "general.architecture", &arch) == 0 && arch.len == 4 &&
           memcmp(arch.data, "clip", 4) == 0;
}

/* Prints how the encoder treats pictures, or why weft does not read it. */
static void print_projector(const struct gguf *g) {
    struct projector p;
    struct err err = {0};

    if (projector_read(&p, g, &err) < 0) {
        printf("\nprojector\nnot supported: %s\n", printable(err.message).s);
        return;
    }
    printf("\nprojector\n%s: %u x %u patches of %u x %u pixels become a row of %u values", p.name,
           p.merge, p.merge, p.patch, p.patch, p.n_out);
    if (p.n_deep)
        printf(" and %u more for the first layers", p.n_deep * p.n_out);
    if (p.side)
        printf("\npictures of %u x %u pixels\n", p.side, p.side);
    else
        printf("\n%u to %u rows a picture\n", p.least, p.most);
    if (p.longest)
        printf("and up to %u tiles of as many pixels, %u along the longer side\n", p.most_tiles,
               p.least_tiles);
    else if (p.tile)
        printf("%u to %u tiles of %u x %u pixels for larger ones\n", p.least_tiles, p.most_tiles,
               p.tile, p.tile);
}

static void json_projector(yyjson_mut_doc *d, yyjson_mut_val *root, const struct gguf *g) {
    yyjson_mut_val *v = yyjson_mut_obj_add_obj(d, root, "projector");
    struct projector p;
    struct err err = {0};

    if (projector_read(&p, g, &err) < 0) {
        yyjson_mut_obj_add_strcpy(d, v, "refused", err.message);
        return;
    }
    yyjson_mut_obj_add_str(d, v, "kind", p.name);
    yyjson_mut_obj_add_uint(d, v, "patch", p.patch);
    yyjson_mut_obj_add_uint(d, v, "merge", p.merge);
    yyjson_mut_obj_add_uint(d, v, "row_values", (uint64_t)p.n_out * (1 + p.n_deep));
    if (p.side)
        yyjson_mut_obj_add_uint(d, v, "image_size", p.side);
    else {
        yyjson_mut_obj_add_uint(d, v, "min_rows", p.least);
        yyjson_mut_obj_add_uint(d, v, "max_rows", p.most);
    }
    if (p.tile) {
        yyjson_mut_obj_add_uint(d, v, "tile", p.tile);
        yyjson_mut_obj_add_uint(d, v, "min_tiles", p.least_tiles);
        yyjson_mut_obj_add_uint(d, v, "max_tiles", p.most_tiles);
    }
}

/* Prints the JSON; without @fit it has no member `fit`. Returns an exit code. */
static int info_print_json(const struct gguf *g, const char *path, const struct model_fit *fit,
                           const struct machine *machine) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d), *meta;
    uint8_t print[16];
    char hex[33], name[1100];

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_val(d, root, "file",
                           info_text_value(d, (struct gguf_str){path, strlen(path)}));
    yyjson_mut_obj_add_uint(d, root, "version", gguf_version(g));
    yyjson_mut_obj_add_uint(d, root, "files", gguf_n_shards(g));
    yyjson_mut_obj_add_uint(d, root, "bytes", gguf_bytes(g));
    gguf_fingerprint(g, print);
    hex_write(hex, print, sizeof(print));
    yyjson_mut_obj_add_str(d, root, "fingerprint", hex);
    meta = yyjson_mut_obj_add_obj(d, root, "metadata");
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        enum gguf_type type;

        key_name(gguf_key(g, i, &type), name);
        yyjson_mut_obj_add(meta, yyjson_mut_strcpy(d, name), json_value(d, g, name, type));
    }
    json_tensors(d, root, g);
    if (is_projector(g))
        json_projector(d, root, g);
    if (fit)
        yyjson_mut_obj_add_val(d, root, "fit", model_fit_json(d, fit, machine));

    /* yyjson writes a number that is not finite only with a flag: as null. */
    CLEANUP(freep)
    char *text = yyjson_mut_write(
        d, YYJSON_WRITE_PRETTY_TWO_SPACES | YYJSON_WRITE_INF_AND_NAN_AS_NULL, NULL);
    yyjson_mut_doc_free(d);
    if (!text)
        return cli_fail("%s: out of memory", path);
    puts(text);
    return CLI_OK;
}

static void print_fit(const struct model_fit *fit, const struct machine *machine) {
    CLEANUP(buf_deinit) struct buf text = {.max = 4096};

    if (model_fit_show(&text, fit, machine) == 0)
        printf("\nthis machine\n%s", text.data);
}

/* Prints the ops of a step of model @g. Returns the exit status. */
static int info_print_ops(const struct gguf *g, const char *path, const char *backend,
                          const struct machine *machine) {
    const struct engine_opts opts = {
        .file = g,
        .backend = backend,
        .devices = machine->devices,
        .isa = "auto",
        .block = machine->drafter,
        .page_tokens = 32,
        .max_rows = 512,
        .max_seqs = 64,
        .max_wants = 512,
        .windows = true,
        .drafts = true,
    };
    CLEANUP(buf_deinit) struct buf text = {.max = 16 << 20};
    struct err err = {0};
    int r = engine_print_ops(&text, &opts, &err);

    if (r < 0)
        return cli_fail_err(path, &err, r);
    fwrite(text.data, 1, text.len, stdout);
    return cli_flush(CLI_OK);
}

/* Opens the model at @path with the values of @overrides. Returns as gguf_open(). */
static int info_open(struct gguf **out, const char *path, const char *overrides, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;

    TRY(checkpoint_open_model(&g, path, err));
    TRY(gguf_override(g, overrides, err));
    *out = STEAL(g);
    return 0;
}

int gguf_cmd_info(int argc, char **argv) {
    bool json = false, no_fit = false, nearest = false;
    struct machine machine = {0};
    struct model_fit fit;
    uint32_t context = 0;
    char *projector = NULL, *drafter = NULL, *kv = "f16", *ops = NULL, *overrides = "";
    const struct cli_option options[] = {
        {"json", CLI_TRUE, &json, 0, 0},
        {"memory", CLI_U64, &machine.memory, 1, 0x1p64},
        {"max-context", CLI_U32, &context, 1, 1u << 26},
        {"kv", CLI_TEXT, &kv, 0, 0},
        {"devices", CLI_TEXT, &machine.devices, 0, 0},
        {"fetch-experts", CLI_TRUE, &machine.fetches_experts, 0, 0},
        {"draft-model", CLI_TEXT, &drafter, 0, 0},
        {"projector", CLI_TEXT, &projector, 0, 0},
        {"override-kv", CLI_TEXT, &overrides, 0, 0},
        {"ops", CLI_TEXT, &ops, 0, 0},
        {"no-fit", CLI_TRUE, &no_fit, 0, 0},
        {"nearest", CLI_TRUE, &nearest, 0, 0},
    };
    CLEANUP(gguf_freep) struct gguf *g = NULL, *sees = NULL, *drafts = NULL;
    struct err err = {0};
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != 1)
        return cli_usage("info needs one FILE");
    if (!kv_option_read(kv, &machine.kv_type))
        return cli_usage("--kv \"%s\": formats are " KV_TYPE_NAMES, kv);
    int r = info_open(&g, argv[1], overrides, &err);
    if (r < 0)
        return cli_fail_err(argv[1], &err, r);
    if (nearest) {
        code = gguf_nearest_print(g, argv[1]);
        return cli_flush(code);
    }
    if (projector && (r = checkpoint_open_projector(&sees, projector, &err)) < 0)
        return cli_fail_err(projector, &err, r);
    if (drafter && (r = checkpoint_open_model(&drafts, drafter, &err)) < 0)
        return cli_fail_err(drafter, &err, r);
    machine.projector = sees;
    machine.drafter = drafts;
    if (ops)
        return info_print_ops(g, argv[1], ops, &machine);
    code = CLI_OK;
    no_fit |= is_projector(g);
    if (!no_fit)
        model_fit(&fit, g, &machine, context);
    if (json)
        code = info_print_json(g, argv[1], no_fit ? NULL : &fit, &machine);
    else
        print_table(g, argv[1]);
    if (!json && is_projector(g))
        print_projector(g);
    if (!json && !no_fit)
        print_fit(&fit, &machine);
    return cli_flush(code);
}
