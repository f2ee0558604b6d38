// SPDX-License-Identifier: GPL-2.0-only
/*
 * cover.c - KCOV: the edges between places of the module
 *
 * Only fiber.ko is built with KCOV (debug-kernel.sh), so every place is one of
 * ours. The kernel writes the places that a thread comes by to a buffer, shared
 * with the parent: its first word counts them. Interrupts are not counted.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

#define KCOV_INIT_TRACE	_IOR('c', 1, unsigned long)
#define KCOV_ENABLE	_IO('c', 100)
#define KCOV_TRACE_PC	0

enum { PLACES = 32768, BITS = 1 << 18 };

static struct {
	int fd;
	unsigned long *place;
} trace[THREADS];
static uint8_t seen[BITS / 8];
static unsigned int edges;

static bool open_one(unsigned int t)
{
	void *p;
	int fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, PLACES))
		return false;
	p = mmap(NULL, PLACES * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED,
		 fd, 0);
	if (p == MAP_FAILED)
		return false;
	trace[t].fd = fd;
	trace[t].place = p;
	return true;
}

/* False: this kernel has no KCOV. */
bool cover_open(void)
{
	for (unsigned int t = 0; t < THREADS; t++)
		if (!open_one(t))
			return false;
	return true;
}

/* The calling thread of a child is thread t of its program. */
void cover_begin(unsigned int t)
{
	if (trace[t].place)
		ioctl(trace[t].fd, KCOV_ENABLE, KCOV_TRACE_PC);
}

/* Parent, no child runs. */
void cover_reset(void)
{
	for (unsigned int t = 0; t < THREADS; t++)
		if (trace[t].place)
			__atomic_store_n(trace[t].place, 0, __ATOMIC_RELAXED);
}

static bool new_edge(unsigned long from, unsigned long to, bool keep)
{
	uint64_t h = (from * 0x9e3779b97f4a7c15ULL) ^ to;
	uint32_t bit;

	h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
	bit = (uint32_t)(h >> 46);		/* BITS of them */
	if (seen[bit / 8] & (1 << bit % 8))
		return false;
	if (keep)
		seen[bit / 8] |= (uint8_t)(1 << bit % 8);
	return true;
}

/* How many edges the last program has found that none had before. */
unsigned int cover_collect(bool keep)
{
	unsigned int found = 0;

	for (unsigned int t = 0; t < THREADS; t++) {
		unsigned long *p = trace[t].place, from = 0, n;

		if (!p)
			continue;
		n = __atomic_load_n(p, __ATOMIC_RELAXED);
		for (unsigned long i = 1; i <= n && i < PLACES; i++) {
			found += new_edge(from, p[i], keep);
			from = p[i];
		}
	}
	if (keep)
		edges += found;
	return found;
}

unsigned int cover_edges(void)
{
	return edges;
}
