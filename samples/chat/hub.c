/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hub.c - who is there, and a line to all of them
 *
 * All under one lock, so that everybody sees the lines in the same order. Nobody
 * waits with it held: a line goes into a queue at once, or its owner is dropped.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"

struct hub hub = { .limit = 1000, .queue = 1024, .lock = FIBER_MUTEX_INIT };

/* It is held for an instant only, so that nobody need be cancelled who wants it. */
void lock(void)
{
	fiber_shield_begin();
	fiber_mutex_lock(&hub.lock);
}

void unlock(void)
{
	fiber_mutex_unlock(&hub.lock);
	fiber_shield_end();
}

void let_go(struct line *l)
{
	if (atomic_fetch_sub(&l->refs, 1) == 1)
		free(l);
}

void drop(struct client *c, const char *why)
{
	if (c->closed)
		return;
	c->closed = true;
	c->why = why;
	fiber_chan_close(c->queue);
}

static void give(struct client *c, struct line *l)
{
	atomic_fetch_add(&l->refs, 1);
	if (fiber_chan_try_send(c->queue, &l) == 0)
		return;
	drop(c, "you do not read what the others say");
	let_go(l);
}

void say(struct client *to, const char *format, ...)
{
	char text[LINE + 2 * NAME];	/* and a little more than a line */
	struct line *l;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	l = malloc(sizeof(*l) + (size_t)n);
	if (!l)
		return;
	atomic_init(&l->refs, 1);
	l->len = (size_t)n;
	memcpy(l->text, text, l->len);
	if (to)
		give(to, l);
	for (struct client *c = to ? NULL : hub.clients; c; c = c->next)
		if (*c->name)
			give(c, l);
	let_go(l);
}

bool name_is_free(const char *name)
{
	for (struct client *c = hub.clients; c; c = c->next)
		if (!strcmp(c->name, name))
			return false;
	return true;
}

void list(struct client *to)
{
	unsigned int count = 0;
	char text[LINE] = "";
	size_t n = 0;

	for (struct client *o = hub.clients; o; o = o->next) {
		if (!*o->name)
			continue;
		count++;
		if (n + 1 + NAME <= sizeof(text))
			n += (size_t)sprintf(text + n, " %s", o->name);
	}
	say(to, "* %u are here:%s%s\n", count, text,
	    n + 1 + NAME > sizeof(text) ? " ..." : "");
}

const char *enter(struct client *c)
{
	const char *why = NULL;

	lock();
	if (hub.stopping)
		why = "* the server stops\n";
	else if (hub.count == hub.limit)
		why = "* there are too many here\n";
	else if (fiber_chan_create(&c->queue, sizeof(struct line *), hub.queue))
		why = "* no memory\n";
	if (!why) {
		c->next = hub.clients;
		hub.clients = c;
		hub.count++;
		say(c, "* who are you?\n");
	}
	unlock();
	return why;
}

/* Out of it again: from here on nobody puts a line into its queue. */
void leave(struct client *c)
{
	struct client **at = &hub.clients;

	lock();
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	hub.count--;
	if (*c->name)
		say(NULL, "* %s is gone\n", c->name);
	unlock();
}
