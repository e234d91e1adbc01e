#pragma once

/*
 * log - one line per event: to stderr with a time stamp, as text or as JSON (log_render.h), or as
 * fields to the journal when the process runs under systemd. Unprintable characters are escaped
 * (printable.h), so one event is always one line. Never log prompt text, keys or file contents. One
 * thread of a process logs.
 *
 * Only the step loop, api/server.c, api/service/service.c, api/generation/audit.c,
 * api/http/listen.c, daemon/ and cmd/ log: libraries return errors.
 */

#include <stdbool.h>

#include "base/log_render.h"
#include "base/util.h"

/* Numbers of syslog(3). Notices are written at every level: they report changes of the service by
 * an operator, and that it serves. */
enum log_level { WLOG_ERROR = 3, WLOG_WARN = 4, WLOG_NOTICE = 5, WLOG_INFO = 6, WLOG_DEBUG = 7 };

/* Writes events up to level @max from now on, under the name of @process ("front", "worker"), which
 * is not copied. Call it before the first event; it may be called again after stderr has
 * changed. */
void log_init(enum log_level max, const char *process);
/* Changes the format of lines on stderr from now on, here and, by the environment, in processes
 * that are started later. Without it log_init() takes the format of the process that started this
 * one, or text. */
void log_set_format(enum log_format f);
/* Changes the level from now on. */
void log_set_level(enum log_level max);
/* Returns the variable "NAME=VALUE" that tells the level to a process that is started with it. It
 * is not in this process's environment, which other threads read. Static. */
char *log_level_variable(void);
/* Returns the level in the environment of the process, or WLOG_INFO. */
enum log_level log_requested_level(void);
/* Returns true if events of @level are written. */
bool log_enabled(enum log_level level);

/* Writes @line, which ends with a newline, to stderr. A line that cannot be written at once is
 * dropped and counted; the number is logged when there is room again. */
void log_line(const char *line);

/* @event is a short constant ("request_done"); @fmt renders `key=value` pairs separated by spaces.
 * A text that is not a constant of the program must pass through quoted() (printable.h). */
void log_event(enum log_level level, const char *event, const char *fmt, ...) PRINTF(3, 4);
