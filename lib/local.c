// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * local.c - storage of a fiber's own
 *
 * A fiber (or plain thread) that sets a value gets an array of slots, which grows
 * to the largest key it has used. A slot counts only with the generation of its
 * key: odd while the key is in use, and another each time it is made, so that
 * values under a deleted key are no values of the next one.
 *
 * Only the fiber itself reads and writes its slots. The destructor of a key is
 * written before its generation is released, and read after that is acquired.
 */
#include <stdlib.h>
#include <string.h>

#include "fb.h"

#define KEYS	128
#define ROUNDS	4

static struct {
	uint32_t generation;		/* atomic; odd: in use */
	void (*destroy)(void *value);	/* constant while in use */
} keys[KEYS];

static pthread_mutex_t keys_lock = PTHREAD_MUTEX_INITIALIZER;

struct fb_local {
	uint32_t n;
	struct slot {
		void *value;
		uint32_t generation;
	} slot[];
};

/* ---- where the caller's slots are ---- */

static __thread struct fb_local *of_thread;

/* Read anew at each use: the fiber may have moved. */
static __attribute__((noinline)) struct fb_local **home(void)
{
	struct fb_carrier *c = fb_current();

	return c ? &c->cur->local : &of_thread;
}

/* ---- keys ---- */

static bool valid(fiber_key_t key)
{
	/* Pairs with the release in fiber_local_create. */
	return key.index < KEYS && key.generation & 1 &&
	       FB_ACQUIRE(keys[key.index].generation) == key.generation;
}

FB_EXPORT int fiber_local_create(fiber_key_t *key, void (*destroy)(void *value))
{
	int r = -EAGAIN;

	if (!key)
		return -EINVAL;
	pthread_mutex_lock(&keys_lock);
	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t g = keys[i].generation;

		if (g & 1)
			continue;
		keys[i].destroy = destroy;
		/* Pairs with the acquires in valid() and destroy_round(). */
		FB_RELEASE(keys[i].generation, g + 1);
		*key = (fiber_key_t){ i, g + 1 };
		r = 0;
		break;
	}
	pthread_mutex_unlock(&keys_lock);
	return r;
}

FB_EXPORT int fiber_local_delete(fiber_key_t key)
{
	int r = -EINVAL;

	pthread_mutex_lock(&keys_lock);
	if (valid(key)) {
		FB_WRITE(keys[key.index].generation, key.generation + 1);
		r = 0;
	}
	pthread_mutex_unlock(&keys_lock);
	return r;
}

/* ---- the end of a fiber or thread ---- */

static bool destroy_round(void)
{
	bool again = false;

	/* A destructor may set others: the array may move. */
	for (uint32_t i = 0; i < (*home())->n; i++) {
		struct slot *s = &(*home())->slot[i];
		void (*destroy)(void *) = keys[i].destroy;
		void *value = s->value;

		s->value = NULL;
		/* Pairs with the release in fiber_local_create. */
		if (!value || !destroy ||
		    FB_ACQUIRE(keys[i].generation) != s->generation)
			continue;
		destroy(value);
		again = true;
	}
	return again;
}

/* In the context of the fiber, or thread, that ends. */
void fb_local_end(void)
{
	if (!*home())		/* done already: see scope.c */
		return;
	for (int i = 0; i < ROUNDS && destroy_round(); i++)
		;
	free(*home());
	*home() = NULL;
}

static void end_of_thread(void *arg)
{
	(void)arg;
	fb_local_end();
}

static pthread_key_t thread_key;
static int thread_key_error;

static void make_thread_key(void)
{
	thread_key_error = pthread_key_create(&thread_key, end_of_thread);
}

/* It has slots now: somebody has to see to them at its end. */
static int mark(void)
{
	static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
	struct fb_carrier *c = fb_current();

	if (c) {
		c->cur->flags |= FB_F_LOCAL;
		return 0;
	}
	pthread_once(&thread_once, make_thread_key);
	return thread_key_error ? -thread_key_error :
	       -pthread_setspecific(thread_key, &of_thread);
}

/* ---- values ---- */

static int grow(uint32_t index)
{
	struct fb_local *old = *home(), *l;
	uint32_t n = old ? old->n : 0, want = index + 1;

	if (n >= want)
		return 0;
	want = (want + 7) & ~7u;
	l = realloc(old, sizeof(*l) + want * sizeof(l->slot[0]));
	if (!l)
		return -ENOMEM;
	memset(&l->slot[n], 0, (want - n) * sizeof(l->slot[0]));
	l->n = want;
	*home() = l;
	return mark();
}

FB_EXPORT int fiber_local_set(fiber_key_t key, const void *value)
{
	struct slot *s;
	int r;

	if (!valid(key))
		return -EINVAL;
	r = grow(key.index);
	if (r)
		return r;
	s = &(*home())->slot[key.index];
	s->value = (void *)(uintptr_t)value;
	s->generation = key.generation;
	return 0;
}

FB_EXPORT void *fiber_local_get(fiber_key_t key)
{
	const struct fb_local *l = *home();

	if (!l || key.index >= l->n ||
	    l->slot[key.index].generation != key.generation || !valid(key))
		return NULL;
	return l->slot[key.index].value;
}
