// SPDX-License-Identifier: GPL-2.0-only
/*
 * hog - a process of one fiber that never parks, until standard input ends
 *
 * Prints its pid when it begins.
 */
#include <stdio.h>
#include <unistd.h>

#include <fiber.h>

static volatile int begun;

static void *hogs(void *arg)
{
	for (begun = 1;;)
		;
	return arg;
}

int main(void)
{
	char byte;

	if (fiber_init(NULL) || fiber_spawn(NULL, hogs, NULL))
		return 1;
	while (!begun)
		usleep(1000);
	printf("%d\n", (int)getpid());
	fflush(stdout);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}
