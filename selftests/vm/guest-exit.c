// SPDX-License-Identifier: GPL-2.0-only
/* Ends the VM through QEMU's isa-debug-exit: status N becomes 2N+1 there. */
#include <stdlib.h>
#include <sys/io.h>
#include <unistd.h>

#define DEBUG_EXIT_PORT 0xf4

int main(int argc, char **argv)
{
	if (ioperm(DEBUG_EXIT_PORT, 4, 1))
		return 1;
	outl(argc > 1 ? atoi(argv[1]) : 0, DEBUG_EXIT_PORT);
	pause();
	return 1;
}
