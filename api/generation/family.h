#pragma once

/*
 * family - properties of a model that follow from its chat template: its format of
 * tool calls and reasoning, and the form in which the template takes them back.
 */

#include "api/api.h"
#include "api/generation/family_format.h"
#include "api/toolcall/toolcall.h"

/* Properties of a model's template, found when the model is opened; then any thread may read
 * them. */
struct family {
    /* NULL: unknown */
    const struct toolcall_format *format;
    /* NULL: none, or the format's own */
    const struct toolcall_reasoning *reasoning;
    /* what the vocabulary has for the marker of reasoning */
    enum toolcall_mark mark;
    /* the format may depend on variables of the request */
    bool varies;
    /* the template has a place for tools; else they are described in a message */
    bool takes_tools;
    /* the template takes arguments of past calls as a string, not as an object */
    bool text_args;
    /* the template leaves past calls out; the format can write them */
    bool drops_calls;
    /* the template leaves out a system message that is not the first one */
    bool drops_system;
    /* the template's name for the reasoning of a past message (messages.h) */
    const char *thoughts;
    /* the template reads it from parts of the content, {type: 'thinking'} */
    bool thought_parts;
    /* the model writes reasoning, in either form */
    bool reasons;
    /* tokens that end a turn, besides those of the vocabulary */
    int32_t ends[FAMILY_ENDS_MAX];
    uint32_t n_ends;
    /* by the variables of requests: family_format_of() */
    struct family_formats formats;
    /* it reasons unless it is told not to */
    bool thinks;
    /* the template reads results of calls from `tool_responses` of the call's message, and not from
     * messages of their own */
    bool result_members;
    /* the template reads a past call from a message with its name in `metadata` and its arguments
     * in the content, and results from messages of the role `observation` */
    bool names_calls;
    /* the template closes it unless a variable turns it on */
    bool closes_thoughts;
    /* the template fails where `tools` is none, and not where it is missing */
    bool no_null_tools;
    /* the template shows contents that are lists of parts, and no strings */
    bool reads_parts;
};

/* Returns true for a template that takes tools as a text, in its variable `functions`. */
bool family_reads_text(const struct template *t);
/* Fills @f from the template of @m; without a template there is nothing but its lock. */
void family_init(struct family *f, const struct api_model *m);
void family_deinit(struct family *f);
/* Gets the format of calls that the template shows with the variables @kwargs of a request. Returns
 * 0, -ENOMEM, or with @quick -EAGAIN, if a rendering is needed that is too long for the loop. On
 * any thread. */
int family_format_of(struct family *f, const struct api_model *m, yyjson_val *kwargs, bool quick,
                     const struct toolcall_format **out);
/* Returns the format in which an answer is read, where @own is the template's: that of calls if
 * @tools were offered, else the one whose markers a content may have; NULL: the text is not
 * parsed. */
const struct toolcall_format *family_format(const struct family *f,
                                            const struct toolcall_format *own, bool tools);
