#pragma once

/*
 * log - one line per event: to stderr with a time stamp, as text or as JSON (log_render.h), or as
 * fields to the journal when the process runs under systemd. What is not printable is escaped
 * (printable.h), so one event is always one line. Never log prompt text, keys or file contents. One
 * thread of a process logs.
 *
 * Only the step loop, api/server.c, api/service/service.c, api/generation/audit.c,
 * api/http/listen.c, daemon/ and cmd/ log: libraries return errors.
 */

#include <stdbool.h>
#include "base/log_render.h"
#include "base/util.h"

/* Numbers of syslog(3). A notice is written at every level: who changed the service, and that it
 * serves. */
enum log_level { WLOG_ERROR = 3, WLOG_WARN = 4, WLOG_NOTICE = 5, WLOG_INFO = 6, WLOG_DEBUG = 7 };

/* Events up to level @max are written, under the name of @process ("front", "worker"), which is not
 * copied. Before the first event; once more after stderr has changed is harmless. */
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
/* Returns the level that the process's environment tells, or WLOG_INFO. */
enum log_level log_told_level(void);
/* Returns true if events of @level are written. */
bool log_enabled(enum log_level level);

/* Writes @line, which ends with a newline, to stderr. A line that cannot be written at once is
 * dropped and counted; the number is logged when there is room again. */
void log_line(const char *line);

/* @event is a short constant ("request_done"); @fmt renders `key=value` pairs separated by spaces.
 * A text that is no constant of the program goes through quoted() (printable.h). */
void log_event(enum log_level level, const char *event, const char *fmt, ...) PRINTF(3, 4);
