#include "scheduler/events.h"

#include <assert.h>
#include <string.h>

#include "base/try.h"

static struct event blank(const struct request *r, enum event_kind kind) {
    return (struct event){.id = r->id,
                          .kind = (uint16_t)kind,
                          .n_cached = r->n_cached,
                          .n_drafted = r->draft.n_drafted,
                          .n_accepted = r->draft.n_accepted,
                          .n_predicted = r->draft.n_predicted,
                          .n_predicted_accepted = r->draft.n_predicted_accepted,
                          .first_step_ns = r->times.first_step_ns,
                          .prompt_end_ns = r->times.prompt_end_ns,
                          .computed_ns = r->times.computed_ns};
}

static void set_why(struct event *e, const struct err *why) {
    e->status = (uint16_t)why->status;
    e->text = (struct str){why->message, (uint32_t)strlen(why->message)};
    e->code = (struct str){why->code, (uint32_t)strlen(why->code)};
    e->param = (struct str){why->param, (uint32_t)strlen(why->param)};
}

static int pack_refusal(struct buf *out, const struct request *r) {
    struct event e = blank(r, EVENT_REJECTED);

    e.finish = FINISH_ERROR;
    set_why(&e, &r->end.why);
    return msg_event_pack(out, &e);
}

/* Packs a TOKENS event, or a FINISH event with the last tokens. Returns 0 or a negative errno. */
static int pack_progress(struct buf *out, struct request *r) {
    uint32_t n_out = request_n_out(r), from = r->acked.n_out, i = from - r->out.base;
    uint32_t n = request_is_prewarm(r) ? 0 : MIN(n_out - from, EVENTS_TOKENS_MAX);
    bool end = r->state == REQUEST_DONE && (from + n == n_out || request_is_prewarm(r));
    assert(from <= n_out && from >= r->out.base);
    bool lp = r->out.want_prompt_lp > 0 && r->out.n_prompt_lp == r->out.want_prompt_lp &&
              !r->acked.prompt_lp;

    if (n == 0 && !end)
        return 0;
    struct event e = blank(r, end ? EVENT_FINISH : EVENT_TOKENS);
    e.from = from;
    e.n_tokens = n;
    e.tokens = r->tokens + r->n_prompt + from;
    if (n > 0) {
        e.n_top = r->sampling.n_top;
        e.logprobs = r->flags & SUBMIT_LOGPROBS && r->out.logprobs ? r->out.logprobs + i : NULL;
        e.top = r->sampling.n_top && r->out.top ? r->out.top + (size_t)i * r->sampling.n_top : NULL;
        e.digests = r->flags & SUBMIT_DIGESTS && r->out.digests ? r->out.digests + i : NULL;
    }
    if (lp) {
        e.n_prompt_lp = r->out.n_prompt_lp;
        e.prompt_lp = r->out.prompt_lp;
        e.n_prompt_top = r->sampling.n_prompt_top;
        e.prompt_top = r->sampling.n_prompt_top ? r->out.prompt_top : NULL;
    }
    if (end)
        e.finish = (uint16_t)r->end.finish;
    if (end && r->end.finish == FINISH_STOP && r->pool.vector) {
        e.n_vector = r->pool.n_vector;
        e.vector = r->pool.vector;
    }
    if (end && r->end.finish == FINISH_ERROR) {
        set_why(&e, &r->end.why);
    }
    TRY(msg_event_pack(out, &e));
    r->sent.n_out = from + n;
    r->sent.end = end;
    r->sent.prompt_lp = r->acked.prompt_lp || lp;
    return 0;
}

/* Packs all that the front does not know yet, and notes it in r->sent. */
static int pack_news(struct buf *out, struct request *r) {
    if (r->end.refused) {
        TRY(pack_refusal(out, r));
        r->sent.end = true;
        return 0;
    }
    struct event accepted = blank(r, EVENT_ACCEPTED);

    if (!r->acked.accepted && !r->grammar.compiling && !request_is_prewarm(r))
        TRY(msg_event_pack(out, &accepted));
    r->sent.accepted = !r->grammar.compiling;
    return pack_progress(out, r);
}

int events_pack(struct buf *out, struct request *r) {
    size_t len = out->len;

    assert(r->acked.n_out >= r->out.base && r->acked.n_out <= request_n_out(r));
    r->sent = r->acked;
    int e = pack_news(out, r);

    if (e < 0) {
        out->len = len;
        r->sent = r->acked;
    }
    return e;
}

bool events_delivered(struct request *r) {
    assert(r->sent.n_out >= r->acked.n_out && (r->sent.end || !r->acked.end));
    r->acked = r->sent;
    if (!r->end.refused)
        request_trim(r);
    if (r->state == REQUEST_DONE)
        return r->acked.end;
    /* The last message may have been full before it came to this request. */
    return (r->acked.accepted || r->grammar.compiling) && r->acked.n_out == request_n_out(r);
}
