#pragma once

/*
 * spec - chooses drafts: asks the sources (scheduler/draft/), estimates how many tokens of a draft
 * are accepted, and rests a source that does not pay. plan_step() decides how many drafted rows a
 * step gets, from these estimates and the cost model. docs/design/speculation.md has the design.
 */

#include "scheduler/draft/draft.h"
#include "scheduler/request.h"

#define SPEC_POSITIONS 6u /* classes of position in the draft */
#define SPEC_LOADS 12u    /* classes of the number of running requests */

/* Trials of a drafted token, and those that were right; old ones fade. */
struct spec_trials {
    float n, right;
};

struct spec_opts {
    bool off;
    /* most tokens of a draft; 0: 16 */
    uint32_t max_draft;
    /* bit i: source i drafts nothing */
    uint32_t no_sources;
    /* NULL-terminated; NULL: the table in spec.c */
    const struct draft_source *const *source;
};

/* Tokens and time of steps with and without drafts; old ones fade. */
struct spec_ledger {
    /* [1]: with drafts */
    double tokens[2], ns[2];
    /* steps */
    uint32_t n[2];
    /* the next step that has no drafts, for comparison */
    uint64_t compare_at;
    /* drafts are off before this step */
    uint64_t paused_until;
    uint32_t interval, pause;
};

struct spec {
    const struct draft_source *source[DRAFT_SOURCES_MAX];
    void *common[DRAFT_SOURCES_MAX];
    /* n_sources 0: speculation is off */
    uint32_t n_sources, max_draft;
    uint32_t no_sources;
    struct spec_trials seen[DRAFT_SOURCES_MAX][SPEC_POSITIONS];
    struct spec_ledger ledger[SPEC_LOADS];
    /* Running means: time of steps without drafts divided by the cost model's, and time of steps
     * with drafts divided by the cost model's times `took`. A cost model that is wrong by a factor
     * therefore does not count against drafts. */
    float took, slower;
    /* number of the step that is planned, set by spec_begin_step() */
    uint64_t turn;
    /* probes that this step may still make */
    uint32_t n_probes;
    /* true: this step has no drafts */
    bool quiet;
};

/* State of a request. */
struct spec_request {
    const struct spec *owner;
    void *state[DRAFT_SOURCES_MAX];
    /* Most tokens of the next draft: twice those accepted in the last one, and a few more. */
    uint32_t longest[DRAFT_SOURCES_MAX];
    struct spec_rest {
        /* output length before which the source is not asked */
        uint32_t until;
        /* output tokens of the last rest */
        uint32_t length;
        /* drafts in a row that got no row, or were all wrong */
        uint32_t refused;
        /* set after a rest: a short draft is tried whatever the estimate */
        bool probe;
    } rest[DRAFT_SOURCES_MAX];

    /* The current draft. survival[i]: probability that its first i + 1 tokens are right. */
    int32_t draft[DRAFT_MAX];
    float survival[DRAFT_MAX];
    uint32_t n_draft, source;
};

/* Opens the sources, at most DRAFT_SOURCES_MAX. Returns 0 or -ENOMEM. */
int spec_init(struct spec *s, const struct spec_opts *opts);
/* accepts a zeroed one; the states of all requests must be freed */
void spec_deinit(struct spec *s);
/* Frees the state @q of a request; accepts NULL. */
struct spec_request *spec_request_free(struct spec_request *q);

/* Begins the drafts of step @turn with @n_running requests. May be called again for the same
 * step. */
void spec_begin_step(struct spec *s, uint64_t turn, uint32_t n_running);
/* Looks for a draft of @r, which lacks one token, and leaves it in r->spec. A search without a
 * result costs almost nothing. */
void spec_propose(struct spec *s, struct request *r);
/* Returns the expected number of accepted tokens of the current draft of @r. */
float spec_offers(struct spec *s, struct request *r);
/* Returns how many tokens @source may draft for @r; 0: it rests. survival[i]: probability that its
 * first i + 1 tokens are right. *probe: see spec_probes(). */
uint32_t spec_expect(struct spec *s, struct request *r, const struct draft_source *source,
                     float survival[DRAFT_MAX], bool *probe);
/* Makes the next draft of @source for @r a probe; the step must have one left. */
void spec_probe(struct spec *s, struct request *r, const struct draft_source *source);
/* Returns whether the current draft is a probe: short, and tried whatever the estimates. */
bool spec_probes(const struct request *r);
/* Notes that the plan gave the current draft no row. */
void spec_refused(struct request *r);
/* Learns that @n_drafted tokens of the draft were computed, of which @n_right were right and sent.
 * @ended: the request ended with the last of these. */
void spec_learn(struct spec *s, struct request *r, uint32_t n_drafted, uint32_t n_right,
                bool ended);
/* Lets the sources learn from the output of @r, which has ended. */
void spec_finish(struct spec *s, const struct request *r);

/* Notes that a step of @n_seqs sequences without prefill took @ns, with @expect_ns expected, and
 * produced @n_tokens tokens. */
void spec_account(struct spec *s, uint32_t n_seqs, bool drafts, uint32_t n_tokens, int64_t ns,
                  int64_t expect_ns);
/* Returns the factor, at least 1, by which steps with drafts take longer than expected, relative to
 * steps without. */
float spec_slower(const struct spec *s);
