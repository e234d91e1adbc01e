#pragma once

/*
 * bench_cmd - the commands of weft-bench. Each takes the arguments from its own name on and returns
 * an exit code of cli.h.
 */

int bench_cmd_engine(int argc, char **argv);   /* measures a model without a server (bench_run.h) */
int bench_cmd_serve(int argc, char **argv);    /* measures a server under requests (bench_load.h) */
int bench_cmd_identity(int argc, char **argv); /* counts equal answers to equal requests */
/* measures a server under agents of tenants (bench_trace.h) */
int bench_cmd_agents(int argc, char **argv);
