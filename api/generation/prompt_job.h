#pragma once

/*
 * prompt_job - turns a request's body into token ids: parses it, renders the chat template,
 * tokenises, and compiles the output's grammar. Small bodies are handled at once, others on the
 * pool, because the loop serves no other client meanwhile. While `running` the job must stay where
 * it is, and the loop's thread does not touch it.
 */

#include "api/generation/prompt.h"

struct exchange;

/* Takes the body of @x's request and calls @done on the loop's thread, at once or later. @job is
 * zeroed; it may be freed in @done. */
void prompt_job_start(struct prompt_job *job, struct exchange *x, const struct endpoint *endpoint,
                      void (*done)(struct prompt_job *job));
/* Asks endpoint.again, on the pool, for the messages of a further round of the same answer, and
 * makes their prompt, which prompts[0] then has; calls @done as prompt_job_start() does.
 * job->goes_on then tells whether there is a further round. @further false: there is none. */
void prompt_job_again(struct prompt_job *job, bool further, void (*done)(struct prompt_job *job));
/* Abandons the job. Returns true if it still runs, and `done` will be called. */
bool prompt_job_abandon(struct prompt_job *job);
/* Notes in @x, for its log line, the model that the job, which has ended, was for, or the name that
 * no model has. */
void prompt_job_name_model(const struct prompt_job *job, struct exchange *x);
/* Frees texts and tokens; parameters and stop strings stay. @keep: the body too. */
void prompt_job_trim(struct prompt_job *job, bool keep);
/* Makes the tokens of @messages; everything else is as in the body, which was kept. On any thread.
 * 0 or a negative errno. */
int prompt_job_render_again(struct prompt_job *job, yyjson_val *messages, struct tokens *out);
/* Frees the contents of a job that does not run; accepts a zeroed one. The job then counts for no
 * model. */
void prompt_job_deinit(struct prompt_job *job);
