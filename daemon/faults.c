#include "daemon/faults.h"

#include <stddef.h>
#include "base/util.h"

/* The row of @id, or FAULTS_MAX. */
static uint32_t find(const struct faults *f, uint64_t id) {
    for (uint32_t i = 0; i < MIN(f->n, FAULTS_MAX); i++)
        if (f->row[i].id == id)
            return i;
    return FAULTS_MAX;
}

static void note_one(struct faults *f, uint64_t id) {
    uint32_t i = find(f, id);

    if (i == FAULTS_MAX) {
        i = f->n++ % FAULTS_MAX;
        f->row[i].id = id;
        f->row[i].n = 0;
    }
    f->row[i].n++;
}

/* No request is in both lists: it runs when its grammar has been compiled. */
void faults_note(struct faults *f, const struct crash_page *page) {
    for (uint32_t i = 0; i < MIN(page->n, CRASH_PAGE_MAX); i++)
        note_one(f, page->ids[i]);
    for (uint32_t i = 0; i < MIN(page->n_compiling, CRASH_PAGE_COMPILING_MAX); i++)
        note_one(f, page->compiling[i]);
}

uint32_t faults_of(const struct faults *f, uint64_t id) {
    uint32_t i = find(f, id);

    return i == FAULTS_MAX ? 0 : f->row[i].n;
}
