#pragma once

/*
 * otlp - sends spans to a collector of OpenTelemetry by OTLP/HTTP, on a separate thread: a request
 * costs the loop a copy into a queue of bounded length. While the collector cannot be reached,
 * hangs, or asks to wait, the queue fills; further spans are dropped and counted.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct otlp;
struct trace_span;

#define OTLP_WHY 160

/* Checks that @endpoint is http[s]://HOST[:PORT][/PATH] or unix:/PATH. Returns 0, or -errno with
 * @err. */
int otlp_check(const char *endpoint, struct err *err);
/* Makes a sender to an endpoint that was checked. Returns 0, -ENOMEM, or -errno if the thread
 * cannot be created. */
int otlp_new(struct otlp **out, const char *endpoint);
/* Sets the port that spans name as the server's; call it before the first span. */
void otlp_set_port(struct otlp *o, int port);
/* Queues span @s. On the loop's thread. */
void otlp_add(struct otlp *o, const struct trace_span *s);
/* Returns true if since the last call the collector began to accept spans, or stopped. @why: the
 * reason why it does not accept them; "": it does. On the loop's thread. */
bool otlp_news(struct otlp *o, char why[OTLP_WHY]);
/* Counts the requests whose spans the collector took, did not take yet, and refused or lost to a
 * full queue. Runs on the loop's thread. */
void otlp_counts(const struct otlp *o, uint64_t *n_exported, uint64_t *n_waiting,
                 uint64_t *n_dropped);
/* Sends the queued spans, for at most a second, and frees the sender. NULL is accepted; returns
 * NULL. */
struct otlp *otlp_free(struct otlp *o);
