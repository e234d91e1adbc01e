#pragma once

/* process - the processes that the front starts: a simulated program each. */

#include <uv.h>
#include "tests/front_sim/sim.h"

struct process;

/* A program. It gets the descriptors of @o, which it must hold, and @p until it calls
 * process_exit(). */
typedef void *program_start(struct process *p, const uv_process_options_t *o);
typedef void program_killed(void *program); /* SIGKILL: frees all it has */

struct program {
    program_start *start;
    program_killed *killed;
};

/* What runs in a process with argv[1] @flag; of other names nothing is found. */
extern const struct program program_worker, program_next;

/* It has ended; its program is freed by its own hand. */
void process_exit(struct process *p, int status, int term_signal);
int process_pid(const struct process *p);
bool process_kill(int pid, int signum);
/* The number of processes that have not ended. */
uint32_t processes_n(void);
extern uint32_t process_spawn_fails; /* one in so many starts fails; 0: none */
