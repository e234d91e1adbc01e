#pragma once

/* ids - the ids of recent requests, so that the operator can ask about one by the name that its
 * client knows, and the times before and after the scheduler had them. Clients choose these names,
 * so two tenants may use the same. */

#include <stdint.h>

#include "base/share_ring.h"
#include "proto/flight.h"

#define GEN_IDS 512u
#define GEN_LEFT_OUT_MAX 256u

/* Times of a request at the front, each no earlier than the one before. */
struct gen_times {
    int64_t received_ns;
    /* waited for its model; both are received_ns if it did not */
    int64_t load_from_ns, load_until_ns;
    /* entered the queue */
    int64_t entered_ns;
    /* left the queue for the worker; 0: not yet */
    int64_t started_ns;
    /* had the last tokens; 0: not yet */
    int64_t ended_ns;
};

/* The last GEN_IDS first generations of text answers, and of their further rounds; where one tenant
 * has most of them, its last ones and more of the others. */
struct gen_ids {
    struct gen_id {
        char request_id[64];
        uint32_t tenant;
        /* order: how many came before */
        uint64_t id, order;
        struct gen_times times;
        /* parts of tools' schemas: loosened_text() */
        char left_out[GEN_LEFT_OUT_MAX];
    } list[GEN_IDS];
    struct share_ring ring;
    uint64_t n;
};

/* Notes that the present generation of the request of @tenant is @id, its times, and what was left
 * out of the schemas of its tools. */
void gen_ids_note(struct gen_ids *ids, uint32_t tenant, const char *request_id, uint64_t id,
                  const struct gen_times *times, const char *left_out);
/* Notes that generation @id has left the queue at @now, if it is among the last. */
void gen_ids_start(struct gen_ids *ids, uint64_t id, int64_t now);
/* Notes that the front had the last tokens of generation @id at @now, if it is among the last. */
void gen_ids_end(struct gen_ids *ids, uint64_t id, int64_t now);
/* Writes the worker's @n records @r of generation @id to @out[@max], with the waits of at least
 * 1 ms that the front knows: before them, for a new worker between them, and behind the end, if the
 * front was late to read the tokens. @max >= @n. Sets *begin_ns to the receipt, as far as it is
 * known. Returns the number of records. */
uint32_t gen_ids_story(const struct gen_ids *ids, uint64_t id, const struct flight_record *r,
                       uint32_t n, struct flight_record *out, uint32_t max, int64_t *begin_ns);
/* Returns what was left out for generation @id; "" also if it is not among the last. */
const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id);
/* Finds the latest request with this x-request-id. Returns 0, -ENOENT: it is not among the last, or
 * -ENOTUNIQ: several tenants have used it. */
int gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id);
