#include "cmd/kv_option.h"

#include <string.h>

#include "base/util.h"

/* Reads one name of @n characters. */
static bool kv_option_read_one(const char *name, size_t n, enum engine_kv_type *out) {
    for (size_t i = 0; i < ARRAY_SIZE(kv_types); i++)
        if (!kv_types[i].judges && strlen(kv_types[i].name) == n &&
            strncmp(name, kv_types[i].name, n) == 0) {
            *out = (enum engine_kv_type)i;
            return true;
        }
    return false;
}

bool kv_option_read(const char *text, struct kv_formats *out) {
    size_t n = strcspn(text, ",");
    const char *values = text[n] ? text + n + 1 : text;

    return kv_option_read_one(text, n, &out->k) &&
           kv_option_read_one(values, strlen(values), &out->v);
}
