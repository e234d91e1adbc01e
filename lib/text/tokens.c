#include <assert.h>
#include <errno.h>

#include "text/tokenizer.h"

void tokens_deinit(struct tokens *t) {
    free(t->id);
    *t = (struct tokens){0};
}

int tokens_add(struct tokens *t, int32_t id) {
    assert(t->n <= t->cap);
    if (t->max && t->n >= t->max)
        return -EMSGSIZE;
    if (!ARRAY_GROW(t->id, t->n, t->cap, 256))
        return -ENOMEM;
    t->id[t->n++] = id;
    return 0;
}
