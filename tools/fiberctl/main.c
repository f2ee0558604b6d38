// SPDX-License-Identifier: GPL-2.0-only
/* main.c - fiberctl: look at processes with fibers, from outside */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fiberctl.h"

static const struct command {
	const char *name, *args, *what;
	int (*run)(int argc, char **argv, bool json);
} commands[] = {
	{ "ps", "[PID]", "processes with fibers; or the fibers of one", cmd_ps },
	{ "top", "[PID]", "the same, again and again; -b: no terminal",
	  cmd_top },
	{ "stack", "PID [ID]", "where fibers are: the functions they are in",
	  cmd_stack },
	{ "dump", "CORE [PROGRAM]", "the same, of a core file", cmd_dump },
	{ "stats", "PID", "counters of the runtime", cmd_stats },
	{ "trace", "PID -o FILE", "record what runs where; -d SECONDS (1)",
	  cmd_trace },
	{ "check", "", "what this machine offers to fibers, and what is missing",
	  cmd_check },
};
#define COMMANDS	(sizeof(commands) / sizeof(commands[0]))

static void help(FILE *to)
{
	fprintf(to, "usage: fiberctl COMMAND [--json] [ARGUMENT]...\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(to, "  %-6s %-14s %s\n", commands[i].name,
			commands[i].args, commands[i].what);
	fprintf(to, "\n  --json  for programs; --help; --version\n"
		"Status: 0, 1 if it failed, 2 if it was called wrongly. See fiberctl(1).\n");
}

int complain(void)
{
	fflush(stdout);
	fprintf(stderr, "fiberctl: %s\n", target_error());
	return EXIT_FAILED;
}

pid_t parse_pid(const char *s)
{
	char *end;
	long n = strtol(s, &end, 10);

	if (*s && !*end && n > 0 && n <= 1 << 30)
		return (pid_t)n;
	fprintf(stderr, "fiberctl: '%s' is no process id\n", s);
	return -1;
}

/* A string of JSON; what is no ASCII stays as it is. */
void json_string(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			putchar('\\');
		if ((unsigned char)*s < ' ')
			printf("\\u%04x", *s);
		else
			putchar(*s);
	}
	putchar('"');
}

static int wrong(const char *what, const char *word)
{
	fprintf(stderr, "fiberctl: %s '%s'; see fiberctl --help\n", what, word);
	return EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(name, commands[i].name))
			return &commands[i];
	return NULL;
}

/* Options out of the arguments; how many are left, or -1. */
static int take_options(int argc, char **argv, bool *json)
{
	const struct command *c = NULL;	/* it has options of its own */
	int n = 0;

	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--json")) {
			*json = true;
		} else if (!strcmp(argv[i], "--help") ||
			   !strcmp(argv[i], "-h")) {
			help(stdout);
			exit(EXIT_FINE);
		} else if (argv[i][0] == '-' &&
			   !(n && (c = find_command(argv[0])) &&
			     (c->run == cmd_top || c->run == cmd_trace))) {
			wrong("no option", argv[i]);
			return -1;
		} else {
			argv[n++] = argv[i];
		}
	}
	return n;
}

int main(int argc, char **argv)
{
	const struct command *c;
	bool json = false;
	int n, r;

	if (argc > 1 && !strcmp(argv[1], "--version")) {
		puts("fiberctl " FIBER_VERSION);
		return EXIT_FINE;
	}
	n = take_options(argc - 1, argv + 1, &json);
	if (n < 0)
		return EXIT_USAGE;
	if (!n) {
		help(stderr);
		return EXIT_USAGE;
	}
	c = find_command(argv[1]);
	if (!c)
		return wrong("no command", argv[1]);
	r = c->run(n, argv + 1, json);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "fiberctl: cannot write: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	return r;
}
