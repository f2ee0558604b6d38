// SPDX-License-Identifier: GPL-2.0-only
/*
 * program.c - made up, changed, written and read
 *
 * Text: "writer N", "together N", "kill N", then a line a call: thread, name,
 * file, three numbers. All of it is a function of the random state.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

uint64_t fuzz_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static uint32_t below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(fuzz_random(state) % n);
}

/* Small numbers select; now and then any number does. */
static uint32_t number(uint64_t *state)
{
	switch (below(state, 8)) {
	case 0: return (uint32_t)fuzz_random(state);
	case 1: return below(state, 4096);
	default: return below(state, 16);
	}
}

static unsigned int pick_op(uint64_t *state)
{
	unsigned int sum = 0, i, at;

	for (i = 0; i < fuzz_ops; i++)
		sum += fuzz_op[i].weight;
	at = below(state, sum);
	for (i = 0; at >= fuzz_op[i].weight; i++)
		at -= fuzz_op[i].weight;
	return i;
}

static struct call random_call(uint64_t *state)
{
	return (struct call){
		.thread = (uint8_t)below(state, THREADS),
		.op = (uint8_t)pick_op(state),
		.fd = (uint8_t)(below(state, 8) ? 0 : below(state, FILES)),
		.a = number(state), .b = number(state), .c = number(state),
	};
}

static void append(struct program *p, unsigned int thread, const char *name,
		   uint32_t a, uint32_t b, uint32_t c)
{
	if (p->nr < MAX_CALLS)
		p->call[p->nr++] = (struct call){
			.thread = (uint8_t)thread,
			.op = (uint8_t)fuzz_op_find(name),
			.a = a, .b = b, .c = c,
		};
}

/* A usable group, so that the calls after it get somewhere. */
static void begin_well(struct program *p, uint64_t *state)
{
	unsigned int t, kind;

	append(p, 0, "open", 0, 0, 0);
	append(p, 0, "setup", (uint32_t)fuzz_random(state), 0, 0);
	for (kind = 0; kind < MAP_KINDS; kind++)
		append(p, 0, "mmap", kind, 0, 0);
	append(p, 0, "text", 0, 0, 0);
	for (t = 0; t < THREADS; t++)
		if (below(state, 4))
			append(p, t, "attach", 0, 0, 0);
}

void program_generate(struct program *p, uint64_t *state)
{
	uint32_t more = 4 + below(state, 20);

	memset(p, 0, sizeof(*p));
	p->writer = below(state, 3);
	p->together = below(state, 2);
	p->kill_us = below(state, 8) ? 0 : 1 + below(state, 20000);
	if (below(state, 10))
		begin_well(p, state);
	while (more-- && p->nr < MAX_CALLS)
		p->call[p->nr++] = random_call(state);
}

static void insert(struct program *p, uint32_t at, const struct call *c)
{
	if (p->nr == MAX_CALLS)
		return;
	memmove(&p->call[at + 1], &p->call[at], (p->nr - at) * sizeof(*c));
	p->call[at] = *c;
	p->nr++;
}

static void drop(struct program *p, uint32_t at)
{
	p->nr--;
	memmove(&p->call[at], &p->call[at + 1], (p->nr - at) * sizeof(*p->call));
}

static void change(struct call *c, uint64_t *state)
{
	switch (below(state, 5)) {
	case 0: c->a = number(state); break;
	case 1: c->b = number(state); break;
	case 2: c->c = number(state); break;
	case 3: c->thread = (uint8_t)below(state, THREADS); break;
	default: c->fd = (uint8_t)below(state, FILES); break;
	}
}

static void change_way(struct program *p, uint64_t *state)
{
	switch (below(state, 3)) {
	case 0: p->writer = below(state, 3); break;
	case 1: p->together = !p->together; break;
	default: p->kill_us = below(state, 2) ? 0 : 1 + below(state, 20000);
	}
}

/* Behind the first @at calls of p: the calls of @other from a place on. */
static void splice(struct program *p, const struct program *other,
		   uint64_t *state)
{
	uint32_t from = other->nr ? below(state, other->nr) : 0;

	p->nr = p->nr ? below(state, p->nr) + 1 : 0;
	while (from < other->nr && p->nr < MAX_CALLS)
		p->call[p->nr++] = other->call[from++];
}

void program_mutate(struct program *p, const struct program *other,
		    uint64_t *state)
{
	uint32_t times = 1 + below(state, 4);
	struct call c;

	while (times--) {
		uint32_t at = p->nr ? below(state, p->nr) : 0;

		switch (p->nr ? below(state, 12) : 0) {
		case 0: case 1: case 2: case 3:
			c = random_call(state);
			insert(p, at, &c);
			break;
		case 4: case 5: case 6: case 7:
			change(&p->call[at], state);
			break;
		case 8: case 9:
			drop(p, at);
			break;
		case 10:
			change_way(p, state);
			break;
		default:
			splice(p, other, state);
		}
	}
}

size_t program_print(const struct program *p, char *text, size_t size)
{
	size_t n;

	n = (size_t)snprintf(text, size, "writer %u\ntogether %u\nkill %u\n",
			     p->writer, p->together, p->kill_us);
	for (uint32_t i = 0; i < p->nr && n < size; i++) {
		const struct call *c = &p->call[i];

		n += (size_t)snprintf(text + n, size - n, "%u %s %u %u %u %u\n",
				      c->thread, fuzz_op[c->op].name, c->fd,
				      c->a, c->b, c->c);
	}
	return n;
}

static bool parse_call(struct program *p, const char *line)
{
	unsigned int thread, fd, a, b, c;
	char name[32];
	int op;

	if (sscanf(line, "%u %31s %u %u %u %u", &thread, name, &fd, &a, &b, &c) != 6)
		return false;
	op = fuzz_op_find(name);
	if (op < 0 || thread >= THREADS || fd >= FILES || p->nr == MAX_CALLS)
		return false;
	p->call[p->nr++] = (struct call){
		.thread = (uint8_t)thread, .op = (uint8_t)op, .fd = (uint8_t)fd,
		.a = a, .b = b, .c = c,
	};
	return true;
}

/* False: not a program of ours. */
bool program_parse(struct program *p, const char *text)
{
	memset(p, 0, sizeof(*p));
	if (sscanf(text, "writer %u\ntogether %u\nkill %u\n", &p->writer,
		   &p->together, &p->kill_us) != 3)
		return false;
	for (int line = 0; text && *text; line++) {
		if (line >= 3 && !parse_call(p, text))
			return false;
		text = strchr(text, '\n');
		text = text ? text + 1 : NULL;
	}
	return true;
}

uint64_t program_hash(const struct program *p)
{
	char text[8192];
	uint64_t h = 0xcbf29ce484222325ULL;
	size_t n = program_print(p, text, sizeof(text));

	for (size_t i = 0; i < n && i < sizeof(text); i++)
		h = (h ^ (uint8_t)text[i]) * 0x100000001b3ULL;
	return h;
}
