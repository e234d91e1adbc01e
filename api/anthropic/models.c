/* /v1/models as Anthropic's clients know it, for those that send its version header. */

#include "api/generation/models.h"

#include <string.h>
#include <time.h>

#include "api/anthropic/anthropic.h"
#include "api/anthropic/input.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/rescan.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/openai/models.h"

static void anthropic_put_model(struct json *j, const struct model *model) {
    const struct api_model *m = model->info;
    char created[32] = "";
    time_t t = m->created_unix;
    struct tm tm;

    strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    json_print(j, "{type:'model', id:%s, display_name:%s, created_at:%s, lifecycle:'active'", m->id,
               m->id, created);
    if (m->max_context)
        json_print(j, "max_input_tokens:%u", m->max_context);
    else
        json_print(j, "max_input_tokens:null");
    json_print(j, "max_tokens:null, capabilities:null, line:null, deprecated_at:null, "
                  "retires_at:null}");
}

void anthropic_models_list_serve(struct exchange *x, struct http *h) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4u << 20};
    const struct model *first = NULL, *last = NULL;
    struct json j = {.out = &b};

    if (rescan_first(x, anthropic_models_list_serve))
        return;
    json_print(&j, "{data:[");
    LIST_FOREACH_ENTRY(m, &env_of(x)->models.list, const struct model, link) {
        if (!models_may_use(x, m))
            continue;
        anthropic_put_model(&j, m);
        first = first ? first : m;
        last = m;
    }
    json_print(&j, "], has_more:false, first_id:%s, last_id:%s}", first ? first->info->id : NULL,
               last ? last->info->id : NULL);
    respond_buf(x, 200, &b, j.error);
}

void anthropic_models_one_serve(struct exchange *x, struct http *h) {
    bool served = anthropic_is_served(env_of(x), x->arg);
    const struct model *m = served ? models_find(env_of(x), x->arg, strlen(x->arg)) : NULL;

    models_answer_one(x, served && !m ? model_first(env_of(x)) : m, anthropic_models_one_serve,
                      anthropic_put_model);
}
