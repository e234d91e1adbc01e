#pragma once

/*
 * messages - a chat's messages and tools as the variables of a chat template: checked, parts of
 * text joined, arguments of past tool calls parsed, as templates expect them. If the template does
 * not support tools, the system message describes them, and calls and their results become text.
 */

#include "api/api.h"
#include "api/generation/gen_request.h"
#include "api/toolcall/toolcall.h"
#include "text/template.h"

struct family;

struct messages_form {
    /* of the model's template */
    const struct family *family;
    /* the first ones are the service's own, not the client's */
    uint32_t n_own;
    /* the template knows no tools */
    bool plain;
    /* nor a system message: the description goes into the first user message */
    bool no_system;
    /* arguments are strings */
    bool text_args;
    /* format in which past calls are written, because the template leaves them out; or NULL */
    const struct toolcall_format *calls;
    /* the template takes only simple definitions of tools */
    bool simple_tools;
    /* the template's name for reasoning, if it is not reasoning_content; or NULL */
    const char *thoughts;
    /* placeholder of a picture (sight.h); "": the model takes no pictures */
    const char *sight;
};

/* Returns the name of a member of function @f that has a wrong type, with the right type in *must
 * ("must be a string"). NULL: there is none. */
const char *messages_wrong_member(yyjson_val *f, const char **must);
/* Gives the roles of @messages the names of OpenAI's API, in their document: those in other letters
 * ("User"), Gemini's "model" for the assistant and Llama's "ipython" for a tool. */
void messages_spell_roles(yyjson_val *messages);
/* Sets @r->functions: checked copies of the tools that the model is offered. */
int messages_functions(struct gen_request *r, struct err *err);
/* Rewrites @tools, which a template refused, for a simple template: each tool and each property
 * gets a description, and no schema is a boolean, contains null, has a list of types or an unknown
 * type. Calls are still checked against the original schemas. */
void messages_simplify_tools(yyjson_mut_doc *doc, yyjson_mut_val *tools);

/* Marks the service's own text in contents: markers of past calls and of pictures. */
struct messages_trust {
    struct template_trust *v;
    size_t n;
    /* in the order of their places: numbers in request.pictures */
    uint32_t *pictures;
    uint32_t n_pictures;
};
/* Frees what messages_vars() wrote; accepts a zeroed one. */
void messages_trust_deinit(struct messages_trust *t);

/* Makes a document whose root is the object of variables. A bad message is a 400 with its place.
 * @trust, which is empty before, gets the trusted ranges of its messages; the caller frees it, also
 * after an error. */
int messages_vars(const struct gen_request *r, const struct api_model *model,
                  const struct messages_form *form, yyjson_doc **out, struct messages_trust *trust,
                  struct err *err);
