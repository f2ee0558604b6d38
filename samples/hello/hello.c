/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Ten naps of one second each, at the same time, in plain blocking code. */
#include <fiber.h>
#include <stdio.h>
#include <unistd.h>

static void *nap(void *arg)
{
	sleep(1);		/* an ordinary call of libc */
	printf("fiber %d slept\n", *(int *)arg);
	return NULL;
}

static int hello(void *arg)
{
	fiber_t *f[10];
	int number[10];

	(void)arg;
	for (int i = 0; i < 10; i++) {
		number[i] = i;
		if (fiber_spawn(&f[i], nap, &number[i]) < 0)
			return 1;
	}
	for (int i = 0; i < 10; i++)
		fiber_join(f[i], NULL);
	return 0;
}

int main(void)
{
	return fiber_run(hello, NULL) ? 1 : 0;
}
