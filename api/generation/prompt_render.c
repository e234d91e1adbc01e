#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "api/generation/messages.h"
#include "api/generation/model.h"
#include "api/generation/normalize.h"
#include "api/generation/picture_parts.h"
#include "api/generation/prompt_steps.h"
#include "api/http/json_build.h"
#include "base/json_value.h"
#include "base/text.h"
#include "base/try.h"

#define SHORT_BODY 4096     /* bytes of a request that any template renders */
#define INLINE_STEPS 10000u /* steps of a rendering that runs on the loop: some 500 us */

/* Sets how the answer to the chat is parsed. */
static void set_parse(struct prompt_job *job, const struct toolcall_format *own) {
    struct family *f = &job->model->family;

    job->parse = (struct toolcall_opts){
        .format = family_format(f, own, job->request.made.functions),
        .reasoning = f->reasoning,
        .mark = f->mark,
        .unbroken = job->request.input.form.kind != NULL,
        .tools = yyjson_doc_get_root(job->request.made.functions),
        .max_calls = job->request.input.one_call ? 1 : 0,
        .only_calls = job->request.input.choice.mode == TOOLS_REQUIRED,
    };
    const struct prompt *p = &job->prompts[0];

    job->parse.in_reasoning = toolcall_opens_reasoning(f->reasoning, p->text, p->len) ||
                              toolcall_opens_own(job->parse.format, p->text, p->len);
    job->parses = job->parse.format || job->parse.reasoning;
}

/* Says that the messages are too long to be rendered. A template that does not come to an end with
 * a short request is wrong: its client would shorten the conversation in vain. */
static int render_too_long(struct prompt_job *job) {
    if (job->body_len < SHORT_BODY)
        return -EINVAL;
    return prompt_too_long(job, "messages", 0, &job->err);
}

/* Returns the steps that are left of those that the variables allow. */
static uint64_t steps_left(const struct prompt_job *job, yyjson_val *vars) {
    uint64_t fuel = template_fuel(vars);

    if (fuel <= job->steps)
        return 0;
    return fuel - job->steps;
}

static int render_vars(struct prompt_job *job, const struct template_opts *o, yyjson_val *vars,
                       const struct messages_trust *trust) {
    if (!o->fuel)
        return -E2BIG;
    TRY(template_render(job->model->info->template, vars, o, &job->rendered, &job->err));
    return picture_parts_order(&job->request, trust->pictures, trust->n_pictures);
}

/* Returns -EBADMSG when the template refuses these messages; it may accept another form of them. A
 * template that takes too long is not tried again: all renderings of a request share one budget. */
static int render_as(struct prompt_job *job, const struct messages_form *form) {
    uint64_t steps = 0;
    struct template_opts o = {.now_unix = time(NULL), .steps = &steps};
    yyjson_doc *vars = NULL;

    struct messages_trust trust = {0};
    int r = messages_vars(&job->request, job->model->info, form, &vars, &trust, &job->err);

    if (r < 0) {
        messages_trust_deinit(&trust);
        return r;
    }
    o.trust = trust.v;
    o.n_trust = trust.n;
    o.fuel = job->quick ? INLINE_STEPS : steps_left(job, yyjson_doc_get_root(vars));
    rendered_deinit(&job->rendered);
    r = render_vars(job, &o, yyjson_doc_get_root(vars), &trust);
    yyjson_doc_free(vars);
    messages_trust_deinit(&trust);
    if (r == -E2BIG && job->quick)
        return -EAGAIN;
    if (!job->quick)
        job->steps += steps;
    if (r != -EINVAL || *job->err.code)
        return r;
    if (job_pause() < 0)
        return -ECANCELED;
    return -EBADMSG;
}

static int render_normalized(struct prompt_job *job, const struct messages_form *form,
                             unsigned how) {
    yyjson_val *own = job->request.input.messages;
    yyjson_doc *doc = NULL;

    if (normalize_messages(own, how, &doc) < 0)
        return -ENOMEM;
    job->request.input.messages = yyjson_doc_get_root(doc);
    int r = render_as(job, form);
    job->request.input.messages = own;
    yyjson_doc_free(doc);
    return r;
}

/* Renders the messages. If the template refuses them, tries once more with an order, and then with
 * past calls, that strict templates accept. The client gets the first error, which is about its own
 * messages. */
static int render_with_fallbacks(struct prompt_job *job, const struct messages_form *form) {
    static const unsigned turns = NORMALIZE_SYSTEM | NORMALIZE_TURNS;
    static const unsigned orders[] = {0, turns, turns | NORMALIZE_NO_SYSTEM,
                                      turns | NORMALIZE_MISSING,
                                      turns | NORMALIZE_MISSING | NORMALIZE_NO_SYSTEM};
    size_t n = ARRAY_SIZE(orders);
    bool drops =
        job->model->family.drops_system && normalize_has_late_system(job->request.input.messages);
    int r;
    struct err err = job->err;

    if (drops)
        r = render_normalized(job, form, NORMALIZE_SYSTEM);
    else
        r = render_as(job, form);

    for (size_t i = 1; i < 2 * n && r == -EBADMSG; i++) {
        if (i >= n && !normalize_has_calls(job->request.input.messages))
            break;
        memset(&job->err, 0, sizeof(job->err));
        r = render_normalized(job, form, orders[i % n] | (i < n ? 0 : NORMALIZE_CALLS));
    }
    if (r == -EBADMSG)
        job->err = err;
    return r;
}

/* Adds the beginning of the answer (prefill) to the prompt. A prefill is no reasoning: reasoning
 * that the template has opened is closed first, also where the request turns reasoning off. */
static int add_prefill(struct prompt_job *job) {
    const struct toolcall_reasoning *reasoning = job->model->family.reasoning;
    struct rendered *out = &job->rendered;
    const char *text = text_or(out->text.data, "");
    bool opens = toolcall_opens_reasoning(reasoning, text, out->text.len);
    bool closes = opens && (job->request.made.prefill.len || gen_request_thinks_not(&job->request));

    if (closes && buf_add_str(&out->text, reasoning->close) < 0)
        return -ENOMEM;
    if (job->request.made.prefill.len == 0)
        return 0;
    if (closes && buf_add_str(&out->text, "\n\n") < 0)
        return -ENOMEM;
    if (!array_resize(&out->user, out->n_user + 1, sizeof(*out->user)))
        return -ENOMEM;
    out->user[out->n_user++] =
        (struct text_range){out->text.len, out->text.len + job->request.made.prefill.len};
    return buf_add(&out->text, job->request.made.prefill.data, job->request.made.prefill.len);
}

/* Renders with @form and what belongs to the request's functions, and adds the prefill. @format
 * becomes the format of the calls. */
static int render_prompt(struct prompt_job *job, struct messages_form *form,
                         const struct toolcall_format **format) {
    struct family *f = &job->model->family;

    TRY(messages_functions(&job->request, &job->err));
    if (job->request.made.functions)
        TRY(family_format_of(f, job->model->info, job->request.input.kwargs, job->quick, format));
    if (f->drops_calls && *format && toolcall_can_write(*format))
        form->calls = *format;
    int r = render_with_fallbacks(job, form);
    /* Perhaps the template knows no system message, or only simple tools. */
    if (r == -EBADMSG && job->request.made.functions) {
        form->no_system = form->plain;
        form->simple_tools = !form->plain;
        memset(&job->err, 0, sizeof(job->err));
        r = render_with_fallbacks(job, form);
    }
    if (r == -EBADMSG)
        return -EINVAL;
    TRY(r);
    return add_prefill(job);
}

/* Renders the chat. The first @n_own messages are the service's, not the client's. */
static int render_messages(struct prompt_job *job, uint32_t n_own) {
    struct family *f = &job->model->family;
    struct messages_form form = {.family = f,
                                 .n_own = n_own,
                                 .plain = !f->takes_tools,
                                 .text_args = !f->takes_tools || f->text_args,
                                 .thoughts = f->thoughts,
                                 .sight = job->model->sight.text};
    const struct toolcall_format *format = f->format;
    int r = render_prompt(job, &form, &format);

    if (r == -E2BIG || r == -EMSGSIZE)
        r = render_too_long(job);
    if (r == -EINVAL && !*job->err.code) {
        struct err e = job->err;

        return err_set_code(
            &job->err, e.status ? e.status : 400, "template_error", "messages", "%s",
            text_filled_or(e.message, "The model's chat template cannot render these messages."));
    }
    if (r < 0)
        return r;
    job->prompts[0].text = text_or(job->rendered.text.data, "");
    job->prompts[0].len = job->rendered.text.len;
    job->prompts[0].user = job->rendered.user;
    job->prompts[0].n_user = job->rendered.n_user;
    if (!job->request.answer.tokens_only)
        set_parse(job, format);
    return 0;
}

/* Sets *out to the chat's messages behind the model's own system message; NULL if they begin with
 * one. */
static int prompt_add_system(const struct prompt_job *job, yyjson_doc **out) {
    yyjson_val *own = job->request.input.messages;
    yyjson_val *role = yyjson_obj_get(yyjson_arr_get_first(own), "role");

    *out = NULL;
    if (!yyjson_is_arr(own) || yyjson_equals_str(role, "system") ||
        yyjson_equals_str(role, "developer"))
        return 0;
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = json_doc_new(&failed);
    yyjson_mut_val *list = yyjson_val_mut_copy(d, own);
    yyjson_mut_arr_prepend(list, json_make(d, "{role:'system', content:%}",
                                           yyjson_mut_str(d, job->model->info->system)));
    return json_doc_seal(d, list, out);
}

int prompt_render(struct prompt_job *job) {
    yyjson_val *own = job->request.input.messages;
    yyjson_doc *doc = NULL;

    if (job->model->info->system)
        TRY(prompt_add_system(job, &doc));
    if (doc)
        job->request.input.messages = yyjson_doc_get_root(doc);
    int r = render_messages(job, doc != NULL);
    job->request.input.messages = own;
    yyjson_doc_free(doc);
    return r;
}
