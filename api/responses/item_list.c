#include "api/responses/item_list.h"

#include <assert.h>

#include "base/try.h"

void item_list_init(struct item_list *l) {
    buf_init(&l->entries, UINT32_MAX);
    buf_init(&l->ids, ITEM_NO_ID - 1);
    l->n_said = 0;
}

void item_list_deinit(struct item_list *l) {
    buf_deinit(&l->entries);
    buf_deinit(&l->ids);
    l->n_said = 0;
}

int item_list_add(struct item_list *l, struct item_entry e, const char *id, size_t id_len) {
    size_t n = item_list_n(l);
    const struct item_entry *last = n ? item_list_get(l, n - 1) : NULL;

    assert(e.len >= 2 && (!last || e.at >= last->at + last->len)); /* {} */
    e.id = id ? (uint32_t)l->ids.len : ITEM_NO_ID;
    if (id) {
        TRY(buf_add(&l->ids, id, id_len));
        TRY(buf_add_char(&l->ids, 0));
    }
    TRY(buf_add(&l->entries, &e, sizeof(e)));
    if (!e.silent)
        l->n_said += e.len;
    return 0;
}

const struct item_entry *item_list_get(const struct item_list *l, size_t i) {
    assert(i < item_list_n(l));
    return (const struct item_entry *)(const void *)l->entries.data + i;
}

const char *item_list_id(const struct item_list *l, const struct item_entry *e) {
    assert(e->id == ITEM_NO_ID || e->id < l->ids.len);
    if (e->id == ITEM_NO_ID)
        return NULL;
    return l->ids.data + e->id;
}

size_t item_list_bytes(const struct item_list *l) {
    return l->entries.cap + l->ids.cap;
}
