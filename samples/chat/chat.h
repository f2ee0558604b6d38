/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * chat.h - chat.c reads, writes and ends; hub.c knows who is there
 */
#ifndef CHAT_H
#define CHAT_H

#include <fiber.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
	NAME = 16,		/* bytes of a name, with its '\0' */
	LINE = 512,		/* bytes of a line */
};

/* A line on its way to many: freed by the last who lets go of it. */
struct line {
	atomic_int refs;
	size_t len;
	char text[];
};

struct client {
	struct client *next;
	int fd;
	fiber_chan_t *queue;	/* of struct line * */
	bool closed;
	const char *why;	/* it was closed, or NULL: the client left */
	char name[NAME];	/* "": not said yet */
	char buf[LINE];		/* what is read ahead */
};

struct hub {
	/* set before the first client */
	unsigned int limit;	/* clients at once */
	unsigned int queue;	/* lines in each queue */
	/* under the lock, as client.name, closed and why are */
	fiber_mutex_t lock;
	struct client *clients;
	unsigned int count;
	bool stopping;
};
extern struct hub hub;

void lock(void);
void unlock(void);

/* NULL, or why not: a whole line. */
const char *enter(struct client *c);
void leave(struct client *c);
void let_go(struct line *l);

/* All these under the lock. What is in the queue is still written after a drop. */
void drop(struct client *c, const char *why);
/* A line to one client, or to all that have a name (NULL). */
void say(struct client *to, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
bool name_is_free(const char *name);
void list(struct client *to);

#endif
