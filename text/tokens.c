#include "text/tokenizer.h"

#include <assert.h>
#include <errno.h>

void tokens_deinit(struct tokens *t) {
    free(t->id);
    *t = (struct tokens){0};
}

int tokens_add(struct tokens *t, int32_t id) {
    assert(t->n <= t->cap);
    if (t->max && t->n >= t->max)
        return -EMSGSIZE;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        int32_t *p = reallocarray(t->id, cap, sizeof(*p));

        if (!p)
            return -ENOMEM;
        t->id = p;
        t->cap = cap;
    }
    t->id[t->n++] = id;
    return 0;
}
