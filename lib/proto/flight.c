#include "proto/flight.h"

#include <assert.h>

static const struct {
    const char *name, *text;
} reasons[WHY_N] = {
    [WHY_QUEUED] = {"queued", "waited behind other requests"},
    [WHY_PROMPT] = {"prompt", "computed its prompt"},
    [WHY_DECODE] = {"decode", "generated tokens"},
    [WHY_LAST] = {"last", "waited for its last token"},
    [WHY_FOLLOW] = {"follow", "waited for pages that another request was computing"},
    [WHY_TIME] = {"time", "waited while steps computed other requests"},
    [WHY_ROWS] = {"rows", "the batch was full"},
    [WHY_PAGES] = {"pages", "waited for pages of the KV cache"},
    [WHY_SEQS] = {"seqs", "the largest number of requests ran (max-seqs)"},
    [WHY_TURN] = {"turn", "waited for a request that had been overtaken too often"},
    [WHY_ALONE] = {"alone", "waited for a quarantined request"},
    [WHY_PICTURE] = {"picture", "waited for a picture"},
    [WHY_ENCODE] = {"encode", "waited while its picture was computed"},
    [WHY_SHARE] = {"share", "its tenant had its share; the rest is reserved for other tenants"},
    [WHY_ADMITTED] = {"admitted", "was admitted"},
    [WHY_PREEMPTED] = {"preempted", "was preempted for its pages"},
    [WHY_ENDED] = {"ended", "ended"},
    [WHY_READ] = {"read", "was received and made into tokens"},
    [WHY_LOAD] = {"load", "waited for its model to be loaded"},
    [WHY_PLACE] = {"place", "waited in the queue (max-running)"},
    [WHY_WORKER] = {"worker", "waited for the worker"},
    [WHY_FRONT] = {"front", "waited for the front to read its last tokens"},
};

const char *flight_name(enum why why) {
    if (why < WHY_N)
        return reasons[why].name;
    return "unknown";
}

const char *flight_text(enum why why) {
    if (why < WHY_N)
        return reasons[why].text;
    return "unknown";
}

void flight_note(struct flight *f, uint64_t *at, uint64_t id, enum why why, uint32_t n_rows,
                 uint32_t detail, int64_t now) {
    assert(why < WHY_N && *at <= f->n_records);
    if (*at > 0 && *at + FLIGHT_RECORDS > f->n_records) {
        struct flight_record *last = &f->record[(*at - 1) % FLIGHT_RECORDS];

        if (last->n_steps == 0 && why < WHY_ADMITTED)
            last->why = (uint8_t)why;
        if (last->why == why && why < WHY_ADMITTED) {
            last->until_ns = now;
            last->n_steps++;
            last->n_rows += n_rows;
            last->detail = detail;
            return;
        }
        last->until_ns = now;
    }
    f->record[f->n_records % FLIGHT_RECORDS] = (struct flight_record){
        .id = id,
        .from_ns = now,
        .until_ns = now,
        .n_steps = 1,
        .n_rows = n_rows,
        .detail = detail,
        .why = (uint8_t)why,
    };
    __atomic_store_n(&f->n_records, f->n_records + 1, __ATOMIC_RELEASE);
    *at = f->n_records;
}

void flight_note_token(struct flight *f, uint64_t *at, uint64_t id, int64_t now) {
    if (*at > 0 && *at + FLIGHT_RECORDS > f->n_records)
        f->record[(*at - 1) % FLIGHT_RECORDS].until_ns = now;
    *at = 0;
    flight_note(f, at, id, WHY_DECODE, 0, 0, now);
    f->record[(*at - 1) % FLIGHT_RECORDS].n_steps = 0;
}

void flight_note_step(struct flight *f, const struct flight_step *step) {
    f->step[f->n_steps % FLIGHT_STEPS] = *step;
    __atomic_store_n(&f->n_steps, f->n_steps + 1, __ATOMIC_RELEASE);
}

uint32_t flight_story(const struct flight *f, uint64_t id, struct flight_record *out,
                      uint32_t max) {
    uint64_t end = __atomic_load_n(&f->n_records, __ATOMIC_ACQUIRE), n = 0;
    uint64_t begin = end > FLIGHT_RECORDS ? end - FLIGHT_RECORDS : 0;

    /* Reads backwards, so that the latest records are kept if there are more than max. */
    for (uint64_t i = end; i > begin && n < max; i--) {
        struct flight_record r = f->record[(i - 1) % FLIGHT_RECORDS];

        if (r.id == id && r.why < WHY_N)
            out[n++] = r;
    }
    for (uint64_t i = 0; i < n / 2; i++) {
        struct flight_record t = out[i];

        out[i] = out[n - 1 - i];
        out[n - 1 - i] = t;
    }
    return (uint32_t)n;
}
