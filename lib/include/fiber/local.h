/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * fiber/local.h - storage of a fiber's own; included by <fiber.h>
 *
 * A key names a pointer that each fiber, and each plain thread, has for itself; it
 * begins as NULL. All calls are for any thread, and none waits.
 */
#include <fiber.h>

#ifndef FIBER_LOCAL_H
#define FIBER_LOCAL_H

typedef struct {
	uint32_t index, generation;
} fiber_key_t;

/*
 * fiber_local_create - make a key
 * @destroy: called at the end of a fiber, or of a plain thread, for a value that
 *           is not NULL, in the fiber itself: it may park and block, and set
 *           values again (four rounds are made, as pthread_key_create(3) says).
 *           A fiber's scope waits for it. May be NULL.
 * Errors: -EAGAIN: 128 keys exist. -EINVAL.
 */
int fiber_local_create(fiber_key_t *key, void (*destroy)(void *value));
/*
 * fiber_local_delete - the key is not used any more; what fibers have under it is
 * forgotten, and nothing is called. Errors: -EINVAL: no such key (any more).
 */
int fiber_local_delete(fiber_key_t key);
/* fiber_local_set - Errors: -ENOMEM, -EINVAL: no such key (any more). */
int fiber_local_set(fiber_key_t key, const void *value);
/* fiber_local_get - the caller's value; NULL: none, or no such key. */
void *fiber_local_get(fiber_key_t key);

#endif
