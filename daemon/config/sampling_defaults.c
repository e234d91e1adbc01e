#include "daemon/config/sampling_defaults.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* Values that the makers of a model family publish in model cards or in generation_config.json; a
 * value that is not listed is off (proto/params.c). Penalties are left out because they would
 * change the tokens of requests that ask for greedy choice. The first row that fits is used. @arch:
 * architectures, separated by spaces, "*": any. @name: a part of the model's name, "": any; a space
 * stands for a space, "-", "_" or nothing, and no digit follows: "llama 3" is not in
 * "codellama-34b". */
static const struct family {
    const char *id, *arch, *name;
    double temperature, top_p, min_p;
    int top_k;
} families[] = {
    {"deepseek-r1", "*", "deepseek r1", 0.6, 0.95, 0, 0},
    {"qwq", "*", "qwq", 0.6, 0.95, 0, 40},
    {"qwen3-coder", "qwen3 qwen3moe qwen3next", "coder", 0.7, 0.8, 0, 20},
    {"qwen3-instruct", "qwen3 qwen3moe qwen3next", "instruct", 0.7, 0.8, 0, 20},
    {"qwen3", "qwen3 qwen3moe qwen3next", "", 0.6, 0.95, 0, 20},
    {"qwen3.5", "qwen35 qwen35moe", "", 1, 0.95, 0, 20},
    {"qwen2", "qwen2 qwen2moe", "", 0.7, 0.8, 0, 20},
    {"qwen3-vl-thinking", "qwen3vl qwen3vlmoe", "thinking", 0.6, 0.95, 0, 20},
    {"qwen3-vl", "qwen3vl qwen3vlmoe", "", 0.7, 0.8, 0, 20},
    {"qwen2-vl", "qwen2vl", "", 0.01, 0.001, 0, 1},
    {"gemma3", "gemma3 gemma3n gemma4", "", 1, 0.95, 0, 64},
    {"gpt-oss", "gpt-oss", "", 1, 1, 0, 0},
    {"lfm2", "lfm2 lfm2moe", "", 0.3, 1, 0.15, 0},
    {"glm-4.6", "glm4moe", "4.6", 1, 0.95, 0, 40},
    {"magistral", "*", "magistral", 0.7, 0.95, 0, 0},
    {"devstral", "*", "devstral", 0.15, 1, 0, 0},
    {"mistral-small", "*", "mistral small", 0.15, 1, 0, 0},
    {"llama-3", "llama", "llama 3", 0.6, 0.9, 0, 0},
    {"smollm3", "*", "smollm3", 0.6, 0.95, 0, 0},
    {"olmo-3", "*", "olmo 3", 0.6, 0.95, 0, 0},
};

/* Values of the last layer, the defaults of llama-server. */
static const struct family fallback = {"weft", "*", "", 0.8, 0.95, 0.05, 40};

/* Returns true if @text contains the name @part, in upper or lower case; see struct family. */
static bool defaults_has_name(const char *text, const char *part) {
    for (; *text; text++) {
        const char *t = text, *p = part;

        while (*p) {
            if (*p == ' ')
                t += strchr(" -_", *t) && *t;
            else if (tolower((unsigned char)*t) != *p)
                break;
            else
                t++;
            p++;
        }
        if (!*p && !isdigit((unsigned char)*t))
            return true;
    }
    return !*part;
}

/* Returns true if @word is one of @words, which are separated by spaces. */
static bool defaults_has_word(const char *words, const char *word) {
    size_t n = strlen(word);

    for (const char *at = words; n > 0 && (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static const struct family *find_family(const struct gguf *file, const char *name) {
    static const char *const keys[] = {"general.name", "general.basename"};
    char arch[64] = "", names[512];
    struct gguf_str s;
    size_t n;

    if (gguf_string(file, "general.architecture", &s) == 0)
        snprintf(arch, sizeof(arch), "%.*s", (int)MIN(s.len, sizeof(arch) - 1), s.data);
    n = (size_t)snprintf(names, sizeof(names), "%.250s", name);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (gguf_string(file, keys[i], &s) == 0)
            n += (size_t)snprintf(names + n, sizeof(names) - n, "/%.*s", (int)MIN(s.len, 100),
                                  s.data);
    for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
        const struct family *f = &families[i];

        if ((strcmp(f->arch, "*") == 0 || defaults_has_word(f->arch, arch)) &&
            defaults_has_name(names, f->name))
            return f;
    }
    return NULL;
}

static void use_family(struct sampling *s, const struct family *f) {
    params_init(s);
    s->temperature = f->temperature;
    s->top_p = f->top_p;
    s->min_p = f->min_p;
    s->top_k = f->top_k;
}

/* Reads the parameters that the model's makers recommend, as converters write them into the file;
 * a value out of range is left out. Returns the number of values that were read. */
static unsigned read_file_defaults(struct sampling *s, const struct gguf *file) {
    static const struct {
        const char *key, *name;
    } map[] = {
        {"general.sampling.temp", "temperature"},
        {"general.sampling.top_p", "top_p"},
        {"general.sampling.min_p", "min_p"},
        {"general.sampling.penalty_repeat", "repetition_penalty"},
    };
    struct err ignored;
    unsigned n = 0;
    uint32_t top_k;
    float v;

    for (size_t i = 0; i < ARRAY_SIZE(map); i++)
        n += gguf_f32(file, map[i].key, &v) == 0 &&
             params_set(s, params_find(map[i].name), (double)v, &ignored) == 0;
    return n + (gguf_u32(file, "general.sampling.top_k", &top_k) == 0 &&
                params_set(s, params_find("top_k"), top_k, &ignored) == 0);
}

/* Takes one item of the option, NAME=VALUE. Returns 0 or -EINVAL. */
static int defaults_parse_item(struct sampling_defaults *d, const char *text, struct err *err) {
    const char *value = strchr(text, '=');
    char name[32] = "", *end = NULL;
    struct err why;

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    const struct param *p = params_find(name);
    bool seed = strcmp(name, "seed") == 0;
    double v = value && !seed ? strtod(value + 1, &end) : 0;
    if (value && seed) {
        errno = 0; /* ERANGE: more than 64 bits */
        d->seed = strtoull(value + 1, &end, 10);
        d->has_seed = strcmp(value + 1, "-1") != 0;
    }
    if (!value || (!p && !seed) || end == value + 1 || *end || (seed && errno))
        return err_set(err, 0, "sampling",
                       "sampling: must be openai, or parameters of requests with numbers, such as "
                       "temperature=0.7,top_p=0.9, not \"%.60s\"",
                       text);
    if (seed || params_set(&d->values, p, v, &why) == 0)
        return 0;
    return err_set(err, 0, "sampling", "sampling: %s", why.message);
}

int sampling_defaults_read(struct sampling_defaults *out, const struct gguf *file, const char *name,
                           char *const *option, struct err *err) {
    const struct family *family = find_family(file, name);

    *out = (struct sampling_defaults){0};
    use_family(&out->values, family ? family : &fallback);
    snprintf(out->source, sizeof(out->source), "%s%s", family ? "family:" : "",
             family ? family->id : fallback.id);
    if (read_file_defaults(&out->values, file) > 0)
        snprintf(out->source, sizeof(out->source), "model-file");
    for (; *option; option++) {
        bool openai = strcmp(*option, "openai") == 0;
        int r = 0;

        if (openai)
            params_init(&out->values);
        else
            r = defaults_parse_item(out, *option, err);
        if (r < 0)
            return r;
        snprintf(out->source, sizeof(out->source), "%s", openai ? "openai" : "option");
    }
    return 0;
}
