#pragma once

/*
 * llama_options - tables of the options of llama-server and vLLM and their equivalents. Rows are
 * data; args.c acts on them.
 */

#include <stdbool.h>
#include <stddef.h>

enum llama_kind {
    /* takes the value of weftd's option `ours` */
    LLAMA_VALUE,
    /* as LLAMA_VALUE; a negative value or "auto" is the default */
    LLAMA_COUNT,
    /* stands for `ours`, which is KEY=VALUE */
    LLAMA_FLAG,
    /* takes the value of the sampling parameter `ours` */
    LLAMA_SAMPLING,
    /* always applies, or weftd decides it; has no value */
    LLAMA_HERE,
    /* as LLAMA_HERE, with a value */
    LLAMA_HERE_VALUE,
    /* as LLAMA_HERE, followed by "on", "off", "auto" or nothing */
    LLAMA_HERE_SWITCH,
    /* as LLAMA_HERE_VALUE, with `ours`, a sentence that is printed */
    LLAMA_NOTED_VALUE,
    /* has no equivalent and no value; `ours` advises what to do */
    LLAMA_REFUSED,
    LLAMA_REFUSED_VALUE,
    /* refused as LLAMA_REFUSED_VALUE, unless the value, 0 or negative, turns it off */
    LLAMA_OFF,
    /* refused as LLAMA_REFUSED_VALUE, unless the value is 1 */
    LLAMA_ONE,
    /* as LLAMA_VALUE; a value above the most that `ours` takes is lowered to it */
    LLAMA_MOST,
    /* args.c handles this and the following kinds one by one */
    LLAMA_CONTEXT,
    LLAMA_PARALLEL,
    LLAMA_UNIFIED,
    LLAMA_HOST,
    LLAMA_PORT,
    LLAMA_KEYS,
    LLAMA_LAYERS,
    LLAMA_KV_TYPE,
    LLAMA_BUDGET,
    LLAMA_CACHE_MIB,
    LLAMA_REPO,
    LLAMA_ALIAS,
    LLAMA_CERTIFICATE,
    LLAMA_TENSORS,
    LLAMA_DEVICES,
    LLAMA_SPLIT,
    /* `ours`: the repository of a model and, behind a blank, the port */
    LLAMA_PRESET,
    /* vLLM's kinds */
    LLAMA_LENGTH,
    LLAMA_SHARDS,
    LLAMA_CACHE_TYPE,
    LLAMA_LEVEL,
    LLAMA_GIB,
    LLAMA_SERVED,
};

struct llama_option {
    /* names separated by commas */
    const char *names;
    enum llama_kind kind;
    const char *ours;
};

/* Returns the row of @name, which is @len bytes long and includes its dashes; NULL: there is
 * none. */
const struct llama_option *llama_option_find(const char *name, size_t len);
bool llama_option_has_no_value(const struct llama_option *o);
