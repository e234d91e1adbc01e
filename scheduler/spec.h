#pragma once

/*
 * spec - what to draft for whom: asks the sources (scheduler/draft/), estimates how much of a
 * draft will be accepted, and rests a source that does not pay. How many drafted rows a step gets
 * is decided by plan_step(), from these estimates and the cost model. docs/design/speculation.md
 * tells the whole story.
 */

#include "scheduler/draft/draft.h"
#include "scheduler/request.h"

#define SPEC_POSITIONS 6u /* classes of position in the draft */
#define SPEC_LOADS 12u    /* classes of the number of running requests */

/* Trials of a drafted token and how many were right, old ones fading. */
struct spec_trials {
    float n, right;
};

struct spec_opts {
    bool off;
    uint32_t max_draft;                       /* 0: 16 */
    uint32_t no_sources;                      /* bit i: source i is not asked */
    const struct draft_source *const *source; /* NULL-terminated; NULL: the table in spec.c */
};

/* Gain of steps with drafts and without; sums in which old ones fade. */
struct spec_ledger {
    double tokens[2], ns[2]; /* [1]: with drafts */
    uint32_t n[2];           /* steps */
    uint64_t compare_at;     /* the step that has no drafts, to see what that brings */
    uint64_t paused_until;   /* no step has drafts before this one */
    uint32_t interval, pause;
};

struct spec {
    const struct draft_source *source[DRAFT_SOURCES_MAX];
    void *common[DRAFT_SOURCES_MAX];
    uint32_t n_sources, max_draft; /* 0 sources: off */
    uint32_t no_sources;
    struct spec_trials seen[DRAFT_SOURCES_MAX][SPEC_POSITIONS];
    struct spec_ledger ledger[SPEC_LOADS];
    /* Running means: what a step without drafts takes, over what the cost model expects; and one
     * with drafts, over what it expects times that. So a cost model that is wrong by a factor does
     * not speak against drafts. */
    float took, slower;
    uint64_t turn;     /* the number of the step that is planned, set by spec_begin_step() */
    uint32_t n_probes; /* probes that this step may still make */
    bool quiet;        /* this step has no drafts */
};

/* A request's part. */
struct spec_request {
    const struct spec *owner;
    void *state[DRAFT_SOURCES_MAX];
    /* Tokens of the next draft: twice what was right in the last one, and a few. */
    uint32_t longest[DRAFT_SOURCES_MAX];
    struct spec_rest {
        uint32_t until;   /* output tokens, before which the source is not asked */
        uint32_t length;  /* output tokens of the last rest */
        uint32_t refused; /* drafts in a row that got no row, or were all wrong */
        bool probe;       /* after a rest: try a little, whatever the estimate says */
    } rest[DRAFT_SOURCES_MAX];

    /* The draft at hand. survival[i]: probability that its first i + 1 tokens are right. */
    int32_t draft[DRAFT_MAX];
    float survival[DRAFT_MAX];
    uint32_t n_draft, source;
};

/* Opens the sources, which are no more than DRAFT_SOURCES_MAX. 0 or -ENOMEM. */
int spec_init(struct spec *s, const struct spec_opts *opts);
void spec_deinit(struct spec *s); /* accepts a zeroed one; all requests' parts are freed */
/* @q may be NULL; its sources end. */
struct spec_request *spec_request_free(struct spec_request *q);

/* Step @turn is planned, with @n_running requests. May be said again for the same step. */
void spec_begin_step(struct spec *s, uint64_t turn, uint32_t n_running);
/* Looks for a draft of @r, which lacks one token; what is found is in r->spec. Nothing found
 * costs nothing worth mentioning. */
void spec_propose(struct spec *s, struct request *r);
/* The tokens expected of the draft that @r would have now. */
float spec_offers(struct spec *s, struct request *r);
/* Returns how many tokens @source may be asked for, before it is: 0, it rests. survival[i]: the
 * probability that its first i + 1 tokens are right. *probe: as spec_probes(). */
uint32_t spec_expect(struct spec *s, struct request *r, const struct draft_source *source,
                     float survival[DRAFT_MAX], bool *probe);
/* @r's next draft of @source is a probe, after a rest or not; the step has one left. */
void spec_probe(struct spec *s, struct request *r, const struct draft_source *source);
/* Returns whether the draft at hand is to be tried whatever the estimates say; it is short. */
bool spec_probes(const struct request *r);
/* The plan gave the draft at hand no row. */
void spec_refused(struct request *r);
/* @n_drafted tokens of it were computed, @n_right of them were right and sent; @ended: the
 * request ended with the last of these. */
void spec_learn(struct spec *s, struct request *r, uint32_t n_drafted, uint32_t n_right,
                bool ended);
/* The request is over. */
void spec_finish(struct spec *s, const struct request *r);

/* A step without prefill of @n_seqs sequences took @ns, where @expect_ns was expected, and brought
 * @n_tokens. */
void spec_account(struct spec *s, uint32_t n_seqs, bool drafts, uint32_t n_tokens, int64_t ns,
                  int64_t expect_ns);
/* Returns how much longer than expected steps with drafts take, compared with those without: at
 * least 1. */
float spec_slower(const struct spec *s);
