#define XXH_INLINE_ALL
#include "kvpager/media.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/result.h"

struct kv_media_entry {
    struct list used;
    struct kv_medium of;
    int32_t number;
    /* next entry in the bucket, numbered as in kv_media.bucket */
    uint32_t next;
};

int kv_media_init(struct kv_media *m, uint32_t max) {
    uint32_t n = 1;

    assert(max > 0 && max < 1u << 30);
    while (n < max)
        n *= 2;
    *m = (struct kv_media){.max = max, .n_buckets = n};
    list_init(&m->used);
    m->entry = calloc(max, sizeof(*m->entry));
    m->bucket = calloc(n, sizeof(*m->bucket));
    return enomem_unless(m->entry && m->bucket);
}

void kv_media_deinit(struct kv_media *m) {
    free(m->entry);
    free(m->bucket);
    *m = (struct kv_media){0};
}

static uint32_t *media_bucket(struct kv_media *m, const struct kv_medium *of) {
    return &m->bucket[XXH3_64bits(of, sizeof(*of)) & (m->n_buckets - 1)];
}

/* Returns an entry without content: a new one, or the least recently used one. */
static struct kv_media_entry *media_acquire(struct kv_media *m) {
    if (m->n_known < m->max)
        return &m->entry[m->n_known++];
    struct kv_media_entry *e = LIST_ENTRY(m->used.next, struct kv_media_entry, used);
    uint32_t *at = media_bucket(m, &e->of), index = (uint32_t)(e - m->entry) + 1;

    while (*at != index)
        at = &m->entry[*at - 1].next;
    *at = e->next;
    list_remove(&e->used);
    return e;
}

int32_t kv_media_number(struct kv_media *m, const struct kv_medium *of) {
    struct kv_media_entry *e;
    uint32_t i = *media_bucket(m, of);

    while (i > 0 && memcmp(&m->entry[i - 1].of, of, sizeof(*of)) != 0)
        i = m->entry[i - 1].next;
    if (i > 0) {
        e = &m->entry[i - 1];
        list_remove(&e->used);
    } else {
        if (m->last == INT32_MIN)
            return 0;
        e = media_acquire(m);
        uint32_t *head = media_bucket(m, of);
        *e = (struct kv_media_entry){.of = *of, .number = --m->last, .next = *head};
        *head = (uint32_t)(e - m->entry) + 1;
    }
    list_push_back(&m->used, &e->used);
    return e->number;
}

const struct kv_medium *kv_media_find(const struct kv_media *m, int32_t number) {
    for (uint32_t i = 0; i < m->n_known; i++)
        if (m->entry[i].number == number)
            return &m->entry[i].of;
    return NULL;
}
